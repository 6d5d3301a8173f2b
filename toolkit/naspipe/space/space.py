"""SearchSpace: decisions, a validity rule, and the blocks of the supernet."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NoReturn

from naspipe.errors import ArchitectureError, SpaceError
from naspipe.space.architecture import Architecture
from naspipe.space.decision import Decision, Option, as_option
from naspipe.space.graph import ArchitectureGraph, chain_graph
from naspipe.usercode import calling
from naspipe.wording import listing, nearest

if TYPE_CHECKING:
    from torch import nn

MAX_TRIES = 10_000
"""Random architectures that a validity rule may refuse in a row before it counts as admitting nothing."""


class SearchSpace(ABC):
    """Named decisions, and the blocks of the supernet that run what the decisions choose.

    In a subclass, ``__init__`` takes the parameters of the space and passes the decisions to ``super().__init__``, and
    ``blocks`` yields the modules. Only ``blocks`` needs torch: counting, drawing and planning work without it.

    Attributes:
        decisions: The decisions, in order.
        is_conditional: Whether some decision depends on another one.
        max_tries: Random architectures that the validity rule may refuse in a row.
    """

    max_tries: ClassVar[int] = MAX_TRIES

    def __init__(self, decisions: Iterable[Decision]) -> None:
        """Check and keep the decisions.

        Args:
            decisions: The decisions, at least one, in the order of every architecture; a parent before its children.

        Raises:
            SpaceError: There is no decision, two have the same name, or a parent or its option is unknown.
        """
        name = type(self).__name__
        if not isinstance(decisions, Iterable):
            raise SpaceError(
                f"{name}.__init__ must pass a list of decisions to super().__init__, but passed {decisions!r}."
            )
        self.decisions = tuple(decisions)
        if not self.decisions:
            raise SpaceError(f"a search space must have at least one decision, but {name} has none.")
        self._by_name: dict[str, Decision] = {}
        for decision in self.decisions:
            if not isinstance(decision, Decision):
                raise SpaceError(
                    f"{name}.__init__ must pass decisions to super().__init__, as in naspipe.Decision('kernel', "
                    f"(3, 5)), but passed {decision!r} of type {type(decision).__name__}."
                )
            if decision.name in self._by_name:
                raise SpaceError(f"decisions must have different names, but two are {decision.name!r}.")
            self._check_parent(decision)
            self._by_name[decision.name] = decision
        self._names = tuple(self._by_name)
        self._options = tuple(decision.options for decision in self.decisions)
        self.is_conditional = any(decision.parent is not None for decision in self.decisions)

    def _check_parent(self, decision: Decision) -> None:
        if decision.parent is None:
            return
        parent = self._by_name.get(decision.parent)
        if parent is None:
            raise SpaceError(
                f"decision {decision.name!r} depends on {decision.parent!r}, which must come before it. "
                f"Before it: {listing(self._by_name)}."
            )
        if not decision.parent_options:
            raise SpaceError(f"decision {decision.name!r} must exist for some option of its parent.")
        for option in decision.parent_options:
            if option not in parent.options:
                raise SpaceError(
                    f"decision {decision.name!r} exists under {parent.name!r} = {option!r}, which is no "
                    f"option of it. It offers {listing(repr(known) for known in parent.options)}."
                )

    @abstractmethod
    def blocks(self) -> Iterable[nn.Module]:
        """Yield the blocks of the supernet, from the input to the output.

        Write it as a generator: each block is then initialised from a random key of its own. A module that is not a
        ``Block``, such as a stem or a head, is part of every architecture.
        """

    def is_valid(self, architecture: Architecture) -> bool:
        """Tell whether the validity rule admits an architecture; by default every architecture is valid."""
        return True

    def format(self, architecture: Architecture) -> str:
        """Return an architecture as text for people; override it together with ``parse``."""
        return " ".join(f"{name}={format_option(option)}" for name, option in architecture.items())

    def parse(self, text: str) -> Architecture:
        """Read an architecture from JSON; a space that overrides ``format`` also reads its own texts.

        Raises:
            ArchitectureError: The text is malformed, or is not an architecture of this space.
        """
        return self.architecture(Architecture.from_json(text))

    def graph(self, architecture: Architecture) -> ArchitectureGraph:
        """Return the drawing of an architecture for a report; by default a chain of its options."""
        return chain_graph([(name, format_option(option)) for name, option in architecture.items()])

    def decision(self, name: str) -> Decision:
        """Return a decision by its name.

        Raises:
            SpaceError: There is no decision of this name.
        """
        if name not in self._by_name:
            raise SpaceError(
                f"the space has no decision {name!r}.{nearest(name, self._names)} It has {listing(self._names)}."
            )
        return self._by_name[name]

    def architecture(self, choices: Mapping[str, Option]) -> Architecture:
        """Return ``choices`` as an architecture of this space, in canonical order.

        Raises:
            ArchitectureError: A decision is unknown, missing, or does not exist under these choices; an option is
                unknown; or the validity rule refuses the architecture.
        """
        if not isinstance(choices, Mapping):
            raise ArchitectureError(
                f"an architecture must be a mapping from decisions to options, but got {choices!r} of type "
                f"{type(choices).__name__}. {type(self).__name__} has the decisions {listing(self._names)}."
            )
        options: list[Option] = []
        names: list[str] = []
        for decision in self.decisions:
            if not exists(decision, dict(zip(names, options, strict=True))):
                if decision.name in choices:
                    raise ArchitectureError(
                        f"decision {decision.name!r} exists only if {decision.parent!r} is one of "
                        f"{list(decision.parent_options)!r}, but it is "
                        f"{choices.get(str(decision.parent))!r}."
                    )
                continue
            if decision.name not in choices:
                self._refuse_missing(decision, choices)
            options.append(decision.options[decision.index(choices[decision.name])])
            names.append(decision.name)
        for name in choices:
            if name not in self._by_name:
                self._refuse_unknown(name)
        architecture = Architecture.unchecked(tuple(names), tuple(options))
        if not self._admits(architecture):
            raise ArchitectureError(f"the validity rule of {type(self).__name__} refuses {self.format(architecture)}.")
        return architecture

    def _admits(self, architecture: Architecture) -> bool:
        if not self.has_rule:
            return True
        name = f"{type(self).__name__}.is_valid"
        with calling(name, SpaceError):
            valid: object = self.is_valid(architecture)
        if valid is None:
            raise SpaceError(f"{name} must return True or False, but returned None for {architecture!r}.")
        return bool(valid)

    def _refuse_unknown(self, name: str) -> NoReturn:
        raise ArchitectureError(
            f"{type(self).__name__} has no decision {name!r}.{nearest(name, self._names)} "
            f"It has {listing(self._names)}."
        )

    def _refuse_missing(self, decision: Decision, choices: Mapping[str, Option]) -> NoReturn:
        for name in choices:
            if name not in self._by_name:
                self._refuse_unknown(name)
        raise ArchitectureError(
            f"an architecture of {type(self).__name__} must make decision {decision.name!r}, but it is "
            f"missing. It offers {listing(repr(option) for option in decision.options)}."
        )

    def from_indices(self, indices: Sequence[int]) -> Architecture:
        """Return the architecture with option ``indices[i]`` of decision i; the validity rule is not checked.

        Args:
            indices: One for each decision; those of decisions that do not exist are ignored.
        """
        if not self.is_conditional:
            return Architecture.unchecked(
                self._names,
                tuple([options[i] for options, i in zip(self._options, indices, strict=True)]),
            )
        chosen: dict[str, Option] = {}
        for decision, index in zip(self.decisions, indices, strict=True):
            if exists(decision, chosen):
                chosen[decision.name] = decision.options[index]
        return Architecture.unchecked(tuple(chosen), tuple(chosen.values()))

    def random_architecture(self, generator: random.Random) -> Architecture:
        """Draw a valid architecture: each decision uniformly, again until the validity rule admits the result.

        Raises:
            SpaceError: None of ``max_tries`` draws is valid.
        """
        uniform = generator.random
        for _ in range(self.max_tries):
            architecture = self.from_indices([int(uniform() * len(o)) for o in self._options])
            if self._admits(architecture):
                return architecture
        raise SpaceError(
            f"the validity rule of {type(self).__name__} must admit some architecture, but refused each of "
            f"{self.max_tries} random ones. Loosen the rule, or make decisions depend on each other by "
            "Decision(..., when=...)."
        )

    @cached_property
    def size(self) -> int:
        """Number of architectures, without the validity rule."""
        # Children come after their parents, so in reverse order each child is complete before its parent.
        below = {decision.name: [1] * len(decision.options) for decision in self.decisions}
        total = 1
        for decision in reversed(self.decisions):
            count = sum(below[decision.name])
            if decision.parent is None:
                total *= count
            else:
                for option in decision.parent_options:
                    below[decision.parent][self._by_name[decision.parent].index(option)] *= count
        return total

    @property
    def has_rule(self) -> bool:
        """Whether the space has a validity rule."""
        return type(self).is_valid is not SearchSpace.is_valid


def exists(decision: Decision, chosen: Mapping[str, Option]) -> bool:
    """Tell whether a decision exists, given the chosen options of the decisions before it."""
    if decision.parent is None:
        return True
    return decision.parent in chosen and chosen[decision.parent] in decision.parent_options


def format_option(option: Option) -> str:
    """Return an option as text for people."""
    return option if isinstance(option, str) else repr(as_option(option))
