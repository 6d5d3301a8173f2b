"""The sampler uniform: every subnet is an independent draw."""

from __future__ import annotations

from naspipe.keys import keyed_random
from naspipe.space import Architecture, SearchSpace
from naspipe.space.sampler import Sampler


class UniformSampler(Sampler):
    """Draws each decision uniformly, independently for each subnet.

    Source: Guo et al., "Single Path One-Shot Neural Architecture Search with Uniform Sampling", 2020.
    """

    def start(self, space: SearchSpace, seed: int) -> None:
        """Remember the space and the seed."""
        self._space = space
        self._seed = seed

    def draw(self, index: int) -> Architecture:
        """Draw from the key (seed, index)."""
        return self._space.random_architecture(keyed_random(self._seed, "sampler", index))
