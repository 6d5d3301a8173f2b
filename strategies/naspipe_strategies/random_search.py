"""The strategy random: the baseline that every strategy must beat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from naspipe.keys import keyed_random
from naspipe.records import Direction
from naspipe.search.strategy import Outcome, Strategy
from naspipe.space import Architecture, SearchSpace


class RandomStrategy(Strategy):
    """Architectures at random, each decision uniformly.

    Source: Li and Talwalkar, "Random Search and Reproducibility for Neural Architecture Search", 2019.
    """

    learns = False

    def __init__(self, batch: Annotated[int, Field(ge=1)] = 16) -> None:
        """Choose how many are proposed at a time.

        Args:
            batch: Architectures in a generation, which the workers divide; it does not change the search.
        """
        self.batch = batch

    @property
    def generation_size(self) -> int:
        """The batch."""
        return self.batch

    def start(self, space: SearchSpace, directions: Sequence[Direction], seed: int) -> None:
        """Remember the space, and begin with the first key."""
        self._space = space
        self._seed = seed
        self._asked = 0

    def ask(self) -> list[Architecture]:
        """Draw each architecture from the key (seed, number of earlier proposals)."""
        places = range(self._asked, self._asked + self.batch)
        self._asked += self.batch
        return [self._space.random_architecture(keyed_random(self._seed, "random strategy", place)) for place in places]

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Ignore the outcomes."""
