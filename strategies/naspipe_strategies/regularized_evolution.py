"""The strategy regularized_evolution: the oldest architecture dies, not the worst."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from naspipe.errors import InputError, NaspipeWarning
from naspipe.keys import keyed_random
from naspipe.records import Direction
from naspipe.search.strategy import Outcome, Strategy, sign_of_only_objective
from naspipe.space import Architecture, SearchSpace
from naspipe.space.neighbours import mutate

MAX_CHILDREN = 100
"""Mutations that may be invalid in a row before a random architecture is proposed instead."""


class RegularizedEvolutionStrategy(Strategy):
    """Ageing evolution: mutates the best of a random sample of the population, and lets the oldest die.

    Source: Real et al., "Regularized Evolution for Image Classifier Architecture Search", AAAI 2019.
    """

    def __init__(
        self,
        population: Annotated[int, Field(ge=2)] = 50,
        sample: Annotated[int, Field(ge=1)] = 10,
        batch: Annotated[int, Field(ge=1)] = 1,
    ) -> None:
        """Choose the sizes.

        Args:
            population: Size of the population, which begins with random architectures.
            sample: Size of the random sample whose best member is the parent.
            batch: Children in a generation, proposed before any of them is evaluated; workers divide them.

        Raises:
            InputError: The sample is larger than the population.
        """
        if sample > population:
            raise InputError(f"sample must be at most the population, {population}, but is {sample}.")
        self.population = population
        self.sample = sample
        self.batch = batch

    @property
    def generation_size(self) -> int:
        """The batch."""
        return self.batch

    def start(self, space: SearchSpace, directions: Sequence[Direction], seed: int) -> None:
        """Begin with an empty population.

        Raises:
            InputError: There are several objectives.
        """
        self._space = space
        self._seed = seed
        self._sign = sign_of_only_objective("regularized_evolution", directions)
        self._alive: deque[tuple[float, Architecture]] = deque(maxlen=self.population)
        self._asked = 0

    def ask(self) -> list[Architecture]:
        """Return random architectures until the population is full, then mutated ones."""
        return [self._propose() for _ in range(self.batch)]

    def _propose(self) -> Architecture:
        generator = keyed_random(self._seed, "regularized evolution", self._asked)
        self._asked += 1
        if len(self._alive) < self.population:
            return self._space.random_architecture(generator)
        # Of equal members, the youngest is the parent.
        places = generator.sample(range(self.population), self.sample)
        parent = self._alive[min(places, key=lambda place: (self._alive[place][0], -place))][1]
        for _ in range(MAX_CHILDREN):
            child = mutate(self._space, parent, generator)
            if child is not None:
                return child
        warnings.warn(
            f"regularized_evolution found no valid child of {self._space.format(parent)} in {MAX_CHILDREN} mutations; "
            "it proposes a random architecture instead.",
            NaspipeWarning,
            stacklevel=2,
        )
        return self._space.random_architecture(generator)

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Add the evaluated architectures to the population, except failed ones."""
        for outcome in outcomes:
            if outcome.values is not None:
                self._alive.append((self._sign * outcome.values[0], outcome.architecture))
