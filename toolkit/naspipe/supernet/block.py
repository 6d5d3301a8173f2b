"""Blocks: the modules that a pipeline cuts at, and the layers they share among architectures."""

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
"""What passes between blocks: a tensor, or a nest of tuples, lists and dicts of tensors and None."""


class Block(nn.Module):
    """A module whose work depends on the architecture.

    A subclass implements ``forward(x, architecture)`` and says which parameters belong to which
    *layer*, the unit of weight sharing. Parameters outside every named layer are *always active*: they
    take part in every architecture. A layer may be used only when ``used_layers`` names it.
    """

    def forward(self, x: Payload, architecture: Architecture) -> Payload:
        """Run the block as the architecture says.

        Args:
            x: The payload of the block before; of the first block, a batch's input.
            architecture: One of the block's space.

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
        """Return what of an architecture decides the form of ``forward``'s output; by default all of it.

        For equal inputs, architectures of one variant must give the same nest of tensors, with the same shapes, types
        and need of a gradient. The form of each variant is found by running it once, so fewer variants save time.
        """
        return architecture

    def extract(self, architecture: Architecture) -> nn.Module:
        """Return a copy of what an architecture uses, as a module with ``forward(x)``.

        By default it is a copy of the block without its unused layers, bound to the architecture.
        Override it to return a module with no trace of choices.
        """
        unused = dict(self.layers())
        for name in self.used_layers(architecture):
            del unused[name]
        # deepcopy's memo maps unused layers to nothing, so that they are never copied.
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
    """A block that is the same in every architecture: a stem, a reduction, a head."""

    def __init__(self, module: nn.Module) -> None:
        """Wrap a module.

        Args:
            module: Called with the payload alone. Its parameters are always active.
        """
        super().__init__()
        self.module = module

    def forward(self, x: Payload, architecture: Architecture) -> Payload:
        """Run the module."""
        return self.module(x)

    def variant(self, architecture: Architecture) -> Hashable:
        """Return the same for every architecture."""
        return None

    def extract(self, architecture: Architecture) -> nn.Module:
        """Return a copy of the module."""
        return copy.deepcopy(self.module)


class ChoiceBlock(Block):
    """A block that runs one of several candidate modules, chosen by one decision."""

    def __init__(self, decision: Decision | str, candidates: Mapping[Option, nn.Module]) -> None:
        """Couple a decision with its candidates.

        Args:
            decision: The decision, or its name. If the decision is given, the candidates must be its
                options.
            candidates: A module for every option, called with the payload alone. If the architecture
                does not make the decision, the payload passes unchanged.

        Raises:
            SpaceError: The candidates are not the decision's options, or there are none.
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
        """Run the candidate that the architecture chose."""
        if self.decision not in architecture:
            return x
        return self.candidates[self._keys[architecture[self.decision]]](x)

    def variant(self, architecture: Architecture) -> Hashable:
        """Return the chosen option."""
        return self._keys[architecture[self.decision]] if self.decision in architecture else None

    def layers(self) -> Mapping[str, nn.Module]:
        """Return the candidates: each is a layer."""
        return dict(self.candidates.items())

    def used_layers(self, architecture: Architecture) -> Sequence[str]:
        """Return the chosen candidate's name."""
        if self.decision not in architecture:
            return ()
        return (self._keys[architecture[self.decision]],)

    def extract(self, architecture: Architecture) -> nn.Module:
        """Return a copy of the chosen candidate."""
        if self.decision not in architecture:
            return nn.Identity()
        return copy.deepcopy(self.candidates[self._keys[architecture[self.decision]]])


def module_key(option: Option) -> str:
    """Return an option as a word that can name a submodule."""
    word = re.sub(r"\W+", "_", str(option)).strip("_") or "option"
    # nn.ModuleDict refuses the names of its own attributes.
    return f"option_{word}" if hasattr(nn.ModuleDict, word) or word[0].isdigit() else word
