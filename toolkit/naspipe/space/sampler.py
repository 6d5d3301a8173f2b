"""Sampler: the order in which subnets are trained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from naspipe.space import Architecture, SearchSpace


class Sampler(ABC):
    """Says which architecture is trained at each step.

    Call order: ``start``, then ``draw`` for 0, 1, 2, ... without a gap. What ``draw`` returns must be a function of
    space, seed, index and the earlier draws: it uses no clock and no global generator. ``start`` may be called at any
    time, and begins a new sequence. (A process of a run uses one sampler in turn for expected costs, for the plan and
    for training.) A sampler that restores the ``state`` that another one had after ``draw(index)`` continues with
    ``draw(index + 1)``.
    """

    @abstractmethod
    def start(self, space: SearchSpace, seed: int) -> None:
        """Begin a new sequence of draws from a space.

        Args:
            space: The search space.
            seed: The run's seed.

        Raises:
            InputError: The sampler's parameters do not fit the space.
        """

    def state(self) -> dict[str, Any]:
        """Return everything else that later draws depend on, as JSON; by default nothing."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over the state of another sampler; called after ``start`` with the same space and seed."""
        assert not state, "a sampler with a state must restore it"

    @abstractmethod
    def draw(self, index: int) -> Architecture:
        """Return the architecture of subnet ``index``, a valid one of the space.

        Raises:
            SpaceError: No valid architecture was found.
        """
