"""Executor: a policy, the pure rule that says which ready action a stage takes next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from naspipe.pipeline.action import Action


class Executor(ABC):
    """A policy with the contract it keeps.

    A policy is a function of integers: it sees actions, never tensors, devices or clocks, and the same
    ready actions must always give the same choice.
    """

    contract: ClassVar[str]
    """What its plans promise about reads and writes; ``causal`` equals sequential training."""

    @abstractmethod
    def choose(self, ready: Sequence[Action]) -> Action:
        """Return the action to take next.

        Args:
            ready: What could be done now, at least one action.
        """
