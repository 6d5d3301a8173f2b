"""Sampler: the order in which subnets are trained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from naspipe.space import Architecture, SearchSpace


class Sampler(ABC):
    """Says which architecture is trained at each step.

    Call order: ``start`` once, then ``draw`` for 0, 1, 2, ... without a gap. What is drawn must be a
    function of (seed, index) and of what was drawn before: no clock, no global generator. ``start`` again
    begins a new sequence. ``state`` after ``draw(index)`` and ``restore`` of it let another sampler go on
    with ``draw(index + 1)``.
    """

    @abstractmethod
    def start(self, space: SearchSpace, seed: int) -> None:
        """Prepare for a space.

        Args:
            space: What is drawn from.
            seed: The run's seed.

        Raises:
            InputError: The sampler's parameters do not fit the space.
        """

    def state(self) -> dict[str, Any]:
        """Return what later draws depend on besides (seed, index), as JSON; by default nothing."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over the state of another sampler; call it after ``start`` with the same space and seed."""
        assert not state, "a sampler with a state must restore it"

    @abstractmethod
    def draw(self, index: int) -> Architecture:
        """Return the architecture of subnet ``index``, a valid one of the space.

        Raises:
            SpaceError: The validity rule refuses everything that was tried.
        """
