"""Strategy: proposes the architectures of a search, by ask and tell."""

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
    """The result of one proposal.

    Attributes:
        architecture: The proposed architecture.
        values: The values of the objectives, in order; None if the trial failed.
    """

    architecture: Architecture
    values: tuple[float, ...] | None


class Strategy(ABC):
    """Proposes architectures and learns from their values.

    Call order: ``start``, then ``ask`` and ``tell`` in turn. ``start`` may be called again before the first ``ask``;
    the last call counts. (A run starts its strategy when it checks the configuration, and where the search has
    constraints once more when it begins: then they are part of the space's validity rule.)

    ``tell`` gets the outcomes of the last ``ask``, all of them, in the order of the proposals, so a search does not
    depend on which evaluation ends first. A strategy may propose an architecture again: it is told the same values,
    without another evaluation, and without cost to the budget. One object serves one search.

    ``ask`` must be a function of space, directions, seed and what was told, and may draw only from keys of the seed. No
    state is saved: a search that is resumed starts a new object, asks it again, and tells it the recorded values.

    An error that ``start`` raises is bad input. One that ``ask`` or ``tell`` raises ends the search; its trials are
    kept.

    Attributes:
        learns: Whether its proposals depend on outcomes.
    """

    learns: ClassVar[bool] = True

    @abstractmethod
    def start(self, space: SearchSpace, directions: Sequence[Direction], seed: int) -> None:
        """Prepare for a search, and forget an earlier ``start``.

        Args:
            space: The search space.
            directions: ``maximize`` or ``minimize`` for each objective.
            seed: The run's seed.
        """

    @property
    def generation_size(self) -> int:
        """Number of architectures that one ``ask`` returns, at least 1."""
        return 1

    @abstractmethod
    def ask(self) -> list[Architecture]:
        """Return the next ``generation_size`` architectures, all valid.

        Raises:
            SpaceError: No valid architecture was found.
        """

    @abstractmethod
    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from the outcomes of the last ``ask``, which are in the order of its proposals."""


def sign_of_only_objective(name: str, directions: Sequence[Direction]) -> float:
    """Return 1 or -1: the only objective's value times this is a cost, for which smaller is better.

    Args:
        name: Name of the strategy, for messages.
        directions: ``maximize`` or ``minimize`` for each objective.

    Raises:
        InputError: There are several objectives.
    """
    if len(directions) != 1:
        raise InputError(
            f"{name} is for one objective, but there are {len(directions)}. Keep one, or use the strategy evolution."
        )
    return 1.0 if directions[0] == "minimize" else -1.0
