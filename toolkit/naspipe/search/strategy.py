"""Strategy: the search over the trained supernet, by ask and tell."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from naspipe.errors import InputError
from naspipe.records import Direction
from naspipe.space import Architecture, SearchSpace


@dataclass(frozen=True)
class Outcome:
    """What came of an architecture that a strategy proposed.

    Attributes:
        architecture: What was proposed.
        values: One for each objective, in order; None if the trial failed.
    """

    architecture: Architecture
    values: tuple[float, ...] | None


class Strategy(ABC):
    """Proposes architectures and learns from their values.

    Call order: ``start`` once, then ``ask`` and ``tell`` in turn. ``tell`` gets the outcomes of the last
    ``ask``, all of them, in the order in which it proposed them, so a search does not depend on which
    evaluation ends first. An architecture may be proposed again: it is told its value again, is not
    evaluated, and costs no budget. One object serves one search, and draws only from keys of its seed.
    What ``start`` raises is bad input; what ``ask`` or ``tell`` raises ends the search, whose trials are kept.
    A search that is resumed starts a new object and goes through what was told again, so no state is saved; ``ask``
    must therefore be a function of space, directions, seed and what was told. Constraints are part of the space's
    validity rule.

    Attributes:
        learns: Whether what it proposes depends on what it is told.
    """

    learns: ClassVar[bool] = True

    @abstractmethod
    def start(self, space: SearchSpace, directions: Sequence[Direction], seed: int) -> None:
        """Prepare for a search.

        Args:
            space: What is searched.
            directions: Which way is better, for each objective.
            seed: The run's seed.
        """

    @property
    def generation_size(self) -> int:
        """Number of architectures that one ``ask`` returns."""
        return 1

    @abstractmethod
    def ask(self) -> list[Architecture]:
        """Return the next ``generation_size`` architectures, valid ones of the space.

        Raises:
            SpaceError: The validity rule refuses everything that was tried.
        """

    @abstractmethod
    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Learn the outcomes of the last ``ask``, in its order."""


def sign_of_only_objective(name: str, directions: Sequence[Direction]) -> float:
    """Return what to multiply the objective's value by so that less is better.

    Args:
        name: The strategy, for the error.
        directions: Which way is better, for each objective.

    Raises:
        InputError: There are several.
    """
    if len(directions) != 1:
        raise InputError(
            f"{name} is for one objective, but there are {len(directions)}. Choose one, or the strategy evolution."
        )
    return 1.0 if directions[0] == "minimize" else -1.0
