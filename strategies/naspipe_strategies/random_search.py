"""Random search: the baseline that every strategy must beat."""

from __future__ import annotations

from collections.abc import Sequence

from naspipe.directions import Direction
from naspipe.keys import keyed_random
from naspipe.search.strategy import Outcome, Strategy
from naspipe.space import Architecture, SearchSpace


class RandomStrategy(Strategy):
    """Architectures at random, each decision uniformly.

    Source: Li and Talwalkar, "Random Search and Reproducibility for Neural Architecture Search", 2019.
    """

    def start(self, space: SearchSpace, directions: Sequence[Direction], seed: int) -> None:
        """Remember the space."""
        self._space = space
        self._seed = seed
        self._asked = 0

    def ask(self) -> list[Architecture]:
        """Draw one architecture from the key (seed, number of architectures asked)."""
        generator = keyed_random(self._seed, "random strategy", self._asked)
        self._asked += 1
        return [self._space.random_architecture(generator)]

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Learn nothing."""
