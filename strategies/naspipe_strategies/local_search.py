"""The strategy local_search: moves to better neighbours, and restarts where there is none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from naspipe.keys import keyed_random
from naspipe.records import Direction
from naspipe.search.strategy import Outcome, Strategy, sign_of_only_objective
from naspipe.space import Architecture, SearchSpace
from naspipe.space.neighbours import neighbours


class LocalSearchStrategy(Strategy):
    """Hill climbing: move to the first better neighbour; at a local optimum, restart from a random architecture.

    Neighbours differ in one decision. Source: White et al., "Exploring the Loss Landscape in Neural Architecture
    Search", UAI 2021, in the variant that does not evaluate all neighbours first.
    """

    def start(self, space: SearchSpace, directions: Sequence[Direction], seed: int) -> None:
        """Prepare to begin at a random architecture.

        Raises:
            InputError: There are several objectives.
        """
        self._space = space
        self._seed = seed
        self._sign = sign_of_only_objective("local_search", directions)
        self._moves = 0
        self._cost: float | None = None
        self._untried: Iterator[Architecture] = iter(())

    def ask(self) -> list[Architecture]:
        """Return the next neighbour, or a random architecture to start from."""
        proposal = next(self._untried, None) if self._cost is not None else None
        if proposal is None:
            self._cost = None
            generator = keyed_random(self._seed, "local search", "start", self._moves)
            self._moves += 1
            proposal = self._space.random_architecture(generator)
        return [proposal]

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Move to the proposed architecture if it is better."""
        (outcome,) = outcomes
        if outcome.values is None:
            return
        cost = self._sign * outcome.values[0]
        if self._cost is None or cost < self._cost:
            self._cost = cost
            generator = keyed_random(self._seed, "local search", "move", self._moves)
            self._moves += 1
            self._untried = neighbours(self._space, outcome.architecture, generator)
