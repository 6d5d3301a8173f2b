"""The sampler spaced: no option is drawn again within a distance, so subnets close to each other share no layer."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from naspipe.errors import InputError, NaspipeWarning, SpaceError
from naspipe.keys import keyed_random
from naspipe.space import Architecture, SearchSpace
from naspipe.space.sampler import Sampler
from naspipe.space.space import MAX_TRIES

DEAD_END_TRIES = 1_000
"""Draws that the validity rule may refuse in a row before the oldest ban is lifted."""

NOTHING = -1
"""Marks a decision that did not exist, or an option whose ban was lifted."""


class SpacedSampler(Sampler):
    """Draws each decision uniformly among the options that the last ``distance`` subnets did not use.

    Each single subnet is still a uniform draw; only subnets close to each other depend on each other. Two subnets
    within the distance share no strict layer, so a causal pipeline does not wait between them.
    """

    def __init__(self, distance: Annotated[int, Field(ge=0)]) -> None:
        """Choose the distance.

        Args:
            distance: Number of subnets within which an option is not drawn again. It is at most the number of options
                less two (with one more, the decision would cycle through its options); for smaller decisions it is
                capped, with a warning.
        """
        self.distance = distance

    def start(self, space: SearchSpace, seed: int) -> None:
        """Find the distance of each decision, and begin without bans.

        Raises:
            InputError: No decision has enough options for the distance.
        """
        self._space = space
        self._seed = seed
        limits = [max(0, len(decision.options) - 2) for decision in space.decisions]
        if self.distance > max(limits):
            raise InputError(
                f"sampler.distance must be at most the number of a decision's options less two, but is "
                f"{self.distance}, and the largest decision allows {max(limits)}."
            )
        self.relaxed = 0
        self._counts = [len(decision.options) for decision in space.decisions]
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
        # For every decision the options of the last subnets, the oldest first.
        self._recent: list[list[int]] = [[] for _ in space.decisions]

    def draw(self, index: int) -> Architecture:
        """Draw from the key (seed, index), among the options that are not banned.

        If the validity rule refuses ``DEAD_END_TRIES`` draws, the oldest ban is lifted; ``relaxed`` counts how often.
        """
        space = self._space
        uniform = keyed_random(self._seed, "sampler", index).random
        while True:
            for _ in range(DEAD_END_TRIES if self._has_bans() else MAX_TRIES):
                indices = [
                    _draw_outside(uniform, count, recent)
                    for count, recent in zip(self._counts, self._recent, strict=True)
                ]
                architecture = space.from_indices(indices)
                if not space.has_rule or space.is_valid(architecture):
                    self._remember(architecture, indices)
                    return architecture
            if not self._drop_oldest():
                raise SpaceError(
                    f"the validity rule of {type(space).__name__} refused every architecture that was tried. "
                    "Loosen the rule, or use the sampler 'uniform'."
                )
            self.relaxed += 1

    def state(self) -> dict[str, Any]:
        """Return the options of the last subnets, and ``relaxed``."""
        return {"recent": [list(recent) for recent in self._recent], "relaxed": self.relaxed}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over the state of another sampler."""
        self._recent = [list(recent) for recent in state["recent"]]
        self.relaxed = state["relaxed"]

    def _has_bans(self) -> bool:
        return any(option != NOTHING for recent in self._recent for option in recent)

    def _remember(self, architecture: Architecture, indices: list[int]) -> None:
        if self._space.is_conditional:
            indices = [
                option if decision.name in architecture else NOTHING
                for decision, option in zip(self._space.decisions, indices, strict=True)
            ]
        for recent, distance, option in zip(self._recent, self._distances, indices, strict=True):
            recent.append(option)
            if len(recent) > distance:
                del recent[0]

    def _drop_oldest(self) -> bool:
        """Lift the oldest ban; return whether there was one."""
        oldest, place = 0, -1
        for number, recent in enumerate(self._recent):
            for age, option in zip(range(len(recent), 0, -1), recent, strict=True):
                if option != NOTHING and age > oldest:
                    oldest, place = age, number
        if place < 0:
            return False
        recent = self._recent[place]
        recent[len(recent) - oldest] = NOTHING
        return True


def _draw_outside(uniform: Callable[[], float], count: int, recent: list[int]) -> int:
    """Draw uniformly from range(count) without the numbers in ``recent``."""
    if 2 * len(recent) <= count:
        while (drawn := int(uniform() * count)) in recent:
            pass
        return drawn
    banned = set(recent)
    free = [option for option in range(count) if option not in banned]
    return free[int(uniform() * len(free))]
