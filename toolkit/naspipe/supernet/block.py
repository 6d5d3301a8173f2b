"""Blocks: the modules between which a pipeline is partitioned, and their layers, which architectures share."""

from __future__ import annotations

import copy
import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from torch import nn

from naspipe.errors import SpaceError
from naspipe.space import Architecture, Decision, Option
from naspipe.wording import listing

Payload = Any
"""The value that passes between blocks: a tensor, or a nest of tuples, lists and dicts of tensors and None."""


class Block(nn.Module):
    """A module whose forward depends on the architecture.

    A subclass implements ``forward(x, architecture)``, and groups its parameters into named *layers*, the units of
    weight sharing. Parameters outside every layer are *always active*: every architecture uses them. ``forward`` may
    use a layer only if ``used_layers`` names it.
    """

    def forward(self, x: Payload, architecture: Architecture) -> Payload:
        """Run the block for an architecture.

        Args:
            x: The output of the block before; for the first block, the input of a batch.
            architecture: An architecture of the space.

        Returns:
            The payload for the next block.
        """
        raise NotImplementedError

    def layers(self) -> Mapping[str, nn.Module]:
        """Return the block's strict layers by name; the modules share no parameter."""
        return {}

    def used_layers(self, architecture: Architecture) -> Sequence[str]:
        """Return the names of the strict layers that ``forward`` uses for an architecture."""
        return ()

    def variant(self, architecture: Architecture) -> Hashable:
        """Return a key for the tensor spec of the output: equal keys mean equal specs; by default the architecture.

        For inputs of one tensor spec, all architectures of one variant must give the same nest of tensors, with equal
        shapes, dtypes and ``requires_grad``. Each variant is run once to find its spec, so fewer variants save time.
        """
        return architecture

    def extract(self, architecture: Architecture) -> nn.Module:
        """Return a copy of everything that an architecture uses, as a module with ``forward(x)``.

        By default this is a copy of the block without its unused layers, bound to the architecture. Override it to
        return a module without choices.
        """
        unused = dict(self.layers())
        for name in self.used_layers(architecture):
            del unused[name]
        # The memo of deepcopy replaces unused layers, so they are not copied.
        memo: dict[int, Any] = {id(module): nn.Identity() for module in unused.values()}
        return BoundBlock(copy.deepcopy(self, memo), architecture)


class BoundBlock(nn.Module):
    """A block bound to one architecture, as an ordinary module."""

    def __init__(self, block: Block, architecture: Architecture) -> None:
        super().__init__()
        self.block = block
        self.architecture = architecture

    def forward(self, x: Payload) -> Payload:
        """Run the block for its architecture."""
        return self.block(x, self.architecture)


class FixedBlock(Block):
    """A block that is the same for every architecture, such as a stem, a reduction or a head."""

    def __init__(self, module: nn.Module) -> None:
        """Wrap a module.

        Args:
            module: Called with the payload only. Its parameters are always active.
        """
        super().__init__()
        self.module = module

    def forward(self, x: Payload, architecture: Architecture) -> Payload:
        """Run the module."""
        return self.module(x)

    def variant(self, architecture: Architecture) -> Hashable:
        """Return one key for all architectures."""
        return None

    def extract(self, architecture: Architecture) -> nn.Module:
        """Return a copy of the module."""
        return copy.deepcopy(self.module)


class ChoiceBlock(Block):
    """A block that runs one of several modules, which one decision chooses."""

    def __init__(self, decision: Decision | str, candidates: Mapping[Option, nn.Module]) -> None:
        """Connect the options of a decision with their modules.

        Args:
            decision: The decision, or its name.
            candidates: A module for every option of the decision, called with the payload only. If an architecture
                does not have the decision, the payload passes unchanged.

        Raises:
            SpaceError: There are no candidates, or they are not the options of the given decision.
        """
        super().__init__()
        if not candidates:
            raise SpaceError("a ChoiceBlock must have candidates, but got none.")
        if isinstance(decision, Decision) and set(decision.options) != set(candidates):
            raise SpaceError(
                f"the candidates of a ChoiceBlock must be the options of its decision {decision.name!r}, "
                f"{listing(repr(option) for option in decision.options)}, but are "
                f"{listing(repr(option) for option in candidates)}."
            )
        self.decision = decision.name if isinstance(decision, Decision) else decision
        self._keys: dict[Option, str] = {}
        for option in candidates:
            key = module_key(option)
            if key in self._keys.values():
                key = f"{key}_{len(self._keys)}"
            self._keys[option] = key
        self.candidates = nn.ModuleDict({self._keys[option]: module for option, module in candidates.items()})

    def forward(self, x: Payload, architecture: Architecture) -> Payload:
        """Run the module of the chosen option."""
        if self.decision not in architecture:
            return x
        return self.candidates[self._keys[architecture[self.decision]]](x)

    def variant(self, architecture: Architecture) -> Hashable:
        """Return the chosen option."""
        return self._keys[architecture[self.decision]] if self.decision in architecture else None

    def layers(self) -> Mapping[str, nn.Module]:
        """Return the module of each option as a layer."""
        return dict(self.candidates.items())

    def used_layers(self, architecture: Architecture) -> Sequence[str]:
        """Return the name of the chosen option's layer."""
        if self.decision not in architecture:
            return ()
        return (self._keys[architecture[self.decision]],)

    def extract(self, architecture: Architecture) -> nn.Module:
        """Return a copy of the chosen option's module."""
        if self.decision not in architecture:
            return nn.Identity()
        return copy.deepcopy(self.candidates[self._keys[architecture[self.decision]]])


def module_key(option: Option) -> str:
    """Return an option as a valid name of a submodule."""
    word = re.sub(r"\W+", "_", str(option)).strip("_") or "option"
    # nn.ModuleDict refuses the names of its attributes.
    return f"option_{word}" if hasattr(nn.ModuleDict, word) or word[0].isdigit() else word
