"""The spaced sampler: no option is drawn again within a distance, so neighbours share no layer."""

from __future__ import annotations

import random
import warnings
from typing import Annotated

from pydantic import Field

from naspipe.errors import InputError, NaspipeWarning, SpaceError
from naspipe.keys import draw_index, keyed_random
from naspipe.search.sampler import Sampler
from naspipe.space import Architecture, SearchSpace
from naspipe.space.space import MAX_TRIES

DEAD_END_TRIES = 1_000
"""Draws that the validity rule refuses before a ban is lifted."""


class SpacedSampler(Sampler):
    """Every decision uniformly among the options that the last ``distance`` subnets did not use.

    Each subnet taken alone is still a uniform draw; only neighbours depend on each other. Subnets closer
    than the distance then share no strict layer, and a causal pipeline need not wait for them.
    """

    def __init__(self, distance: Annotated[int, Field(ge=0)]) -> None:
        """Choose the distance.

        Args:
            distance: An option is not drawn again within this many subnets. At most two less than the
                options of a decision; one more, and every decision would cycle through its options.
                Decisions with fewer options than that are capped, with a warning.
        """
        self.distance = distance
        self.relaxed = 0

    def start(self, space: SearchSpace, seed: int) -> None:
        """Find each decision's distance.

        Raises:
            InputError: No decision has enough options for the distance.
        """
        self._space = space
        self._seed = seed
        limits = [max(0, len(decision.options) - 2) for decision in space.decisions]
        if self.distance > max(limits):
            raise InputError(
                f"sampler.distance must be at most the options of a decision less two, but is "
                f"{self.distance}, and the largest decision allows {max(limits)}."
            )
        self._distances = [min(self.distance, limit) for limit in limits]
        capped = [
            decision.name
            for decision, distance in zip(space.decisions, self._distances, strict=True)
            if distance < self.distance
        ]
        if capped:
            warnings.warn(
                f"sampler.distance = {self.distance} is capped for {len(capped)} of {len(limits)} "
                f"decisions that have fewer than {self.distance + 2} options, {capped[0]!r} first: their "
                "neighbouring subnets may share layers.",
                NaspipeWarning,
                stacklevel=2,
            )
        # For every decision the options of the last subnets that decided it, oldest first.
        self._recent: list[list[tuple[int, int]]] = [[] for _ in space.decisions]

    def draw(self, index: int) -> Architecture:
        """Draw from the key (seed, index), among what the last subnets left.

        If the validity rule refuses everything tried, the oldest ban is dropped; ``relaxed`` counts it.
        """
        generator = keyed_random(self._seed, "sampler", index)
        self._expire(index)
        while True:
            for _ in range(DEAD_END_TRIES if any(self._recent) else MAX_TRIES):
                indices = [
                    _draw_outside(generator, len(decision.options), [o for _, o in recent])
                    for decision, recent in zip(self._space.decisions, self._recent, strict=True)
                ]
                architecture = self._space.from_indices(indices)
                if self._space.is_valid(architecture):
                    self._remember(index, architecture, indices)
                    return architecture
            if not self._drop_oldest():
                raise SpaceError(
                    f"the validity rule of {type(self._space).__name__} refused every architecture that "
                    "was tried. Loosen the rule, or use the sampler 'uniform'."
                )
            self.relaxed += 1

    def _expire(self, index: int) -> None:
        for recent, distance in zip(self._recent, self._distances, strict=True):
            while recent and index - recent[0][0] > distance:
                del recent[0]

    def _remember(self, index: int, architecture: Architecture, indices: list[int]) -> None:
        for decision, recent, distance, option in zip(
            self._space.decisions, self._recent, self._distances, indices, strict=True
        ):
            if distance and decision.name in architecture:
                recent.append((index, option))

    def _drop_oldest(self) -> bool:
        """Lift the ban that was set first; tell whether there was one."""
        banned = [recent for recent in self._recent if recent]
        if not banned:
            return False
        del min(banned, key=lambda recent: recent[0][0])[0]
        return True


def _draw_outside(generator: random.Random, count: int, banned: list[int]) -> int:
    """Draw uniformly from range(count) without ``banned``, which are all different."""
    drawn = draw_index(generator, count - len(banned))
    for option in sorted(banned):
        drawn += drawn >= option
    return drawn
