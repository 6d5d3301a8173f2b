"""The sampler fair: rounds in which each option of a decision is drawn once."""

from __future__ import annotations

from typing import Any

from naspipe.errors import SpaceError
from naspipe.keys import keyed_random
from naspipe.space import Architecture, SearchSpace
from naspipe.space.sampler import Sampler
from naspipe.space.space import MAX_TRIES

DEAD_END_TRIES = 1_000
"""Draws that the validity rule may refuse in a row before all rounds start anew."""


class FairSampler(Sampler):
    """Draws each decision without replacement, in rounds, so that all its options are trained equally often.

    A round of a decision has as many draws as the decision has options. Source: strict fairness of Chu et al.,
    "FairNAS: Rethinking Evaluation Fairness of Weight Sharing Neural Architecture Search", ICCV 2021.
    """

    def start(self, space: SearchSpace, seed: int) -> None:
        """Begin the first rounds."""
        self._space = space
        self._seed = seed
        self.relaxed = 0
        self._left = self._new_rounds()

    def _new_rounds(self) -> list[list[int]]:
        return [list(range(len(decision.options))) for decision in self._space.decisions]

    def draw(self, index: int) -> Architecture:
        """Draw from the key (seed, index), among the options that the rounds have left.

        If the validity rule refuses ``DEAD_END_TRIES`` draws, all rounds start anew; ``relaxed`` counts how often.
        """
        space = self._space
        uniform = keyed_random(self._seed, "sampler", index).random
        fresh = False
        while True:
            for _ in range(MAX_TRIES if fresh else DEAD_END_TRIES):
                indices = [left[int(uniform() * len(left))] for left in self._left]
                architecture = space.from_indices(indices)
                if not space.has_rule or space.is_valid(architecture):
                    self._remove(architecture, indices)
                    return architecture
            if fresh:
                raise SpaceError(
                    f"the validity rule of {type(space).__name__} refused every architecture that was tried. "
                    "Loosen the rule, or use the sampler 'uniform'."
                )
            self._left = self._new_rounds()
            self.relaxed += 1
            fresh = True

    def _remove(self, architecture: Architecture, indices: list[int]) -> None:
        for decision, left, option in zip(self._space.decisions, self._left, indices, strict=True):
            if not self._space.is_conditional or decision.name in architecture:
                left.remove(option)
                if not left:
                    left.extend(range(len(decision.options)))

    def state(self) -> dict[str, Any]:
        """Return the options that the rounds have left, and ``relaxed``."""
        return {"left": [list(left) for left in self._left], "relaxed": self.relaxed}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over the state of another sampler."""
        self._left = [list(left) for left in state["left"]]
        self.relaxed = state["relaxed"]
