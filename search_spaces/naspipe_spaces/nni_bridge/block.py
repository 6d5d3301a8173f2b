"""A block of a converted model space, and its extraction for one architecture."""

from __future__ import annotations

import copy
import operator
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from torch import fx, nn

from naspipe.space import Architecture
from naspipe.supernet import Block
from naspipe_spaces.nni_bridge.choosers import Choices, Chooser, choosing
from naspipe_spaces.nni_bridge.conversion import holds_choices
from naspipe_spaces.nni_bridge.sharing import find_conditions, find_layers


class NNIBlock(Block):
    """A block of a model space: a module whose choosers follow the architecture of each call."""

    def __init__(self, module: nn.Module) -> None:
        """Wrap a converted module.

        Args:
            module: The module, called with the payload.
        """
        super().__init__()
        self.module = module
        self._labels = tuple(find_conditions(module))
        # Only the conditions are kept, since a move to another device may replace the parameters.
        self._conditions = {name: layer.place.conditions for name, layer in find_layers(module).items()}

    def forward(self, x: Any, architecture: Architecture) -> Any:
        """Run the module for an architecture."""
        with choosing(architecture):
            return self.module(x)

    def layers(self) -> Mapping[str, nn.Module]:
        """Return the layers that only some architectures use."""
        return {name: layer.module for name, layer in find_layers(self.module).items()}

    def used_layers(self, architecture: Architecture) -> Sequence[str]:
        """Return the layers that run for an architecture."""
        return [name for name, conditions in self._conditions.items() if all(c.holds(architecture) for c in conditions)]

    def variant(self, architecture: Architecture) -> Hashable:
        """Return the options of the block's decisions."""
        return tuple(architecture.get(label, None) for label in self._labels)

    def extract(self, architecture: Architecture) -> nn.Module:
        """Return a copy of the module without choices."""
        return Extraction(architecture).fix(self.module)


class Extraction:
    """Copies modules without their choices; modules and tensors that are shared stay shared."""

    def __init__(self, choices: Choices) -> None:
        """Prepare the extraction.

        Args:
            choices: The architecture.
        """
        self._choices = choices
        self._done: dict[int, nn.Module] = {}
        self._memo: dict[int, Any] = {}

    def fix(self, module: nn.Module) -> nn.Module:
        """Return a copy of a module without choices."""
        if id(module) not in self._done:
            self._done[id(module)] = self._fixed(module)
        return self._done[id(module)]

    def _fixed(self, module: nn.Module) -> nn.Module:
        if isinstance(module, fx.GraphModule):
            return self._graph(module)
        if isinstance(module, Chooser):
            return module.fixed(self._choices, self.fix)
        if not holds_choices(module):
            return copy.deepcopy(module, self._memo)
        result = copy.copy(module)
        result._parameters = {name: copy.deepcopy(p, self._memo) for name, p in module._parameters.items()}
        result._buffers = {name: copy.deepcopy(b, self._memo) for name, b in module._buffers.items()}
        result._modules = {
            name: self.fix(child) if child is not None else None for name, child in module._modules.items()
        }
        return result

    def _graph(self, module: fx.GraphModule) -> nn.Module:
        parts: dict[str, Any] = {}
        for node in module.graph.nodes:
            target = str(node.target)
            if node.op == "call_module":
                parts[target] = self.fix(module.get_submodule(target))
            elif node.op == "get_attr":
                parts[target] = copy.deepcopy(operator.attrgetter(target)(module), self._memo)
        return fx.GraphModule(parts, module.graph)
