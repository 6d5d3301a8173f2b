"""Drains: a subnet is admitted only after all earlier ones have been updated on every stage."""

from __future__ import annotations

from collections.abc import Callable, Container
from enum import Enum, auto


class Admission(Enum):
    """When a subnet may be admitted.

    Attributes:
        AT_ONCE: As soon as the window has room.
        DRAINED: After all earlier subnets have been updated on every stage.
        NEVER: It is not trained, nor is any later one.
    """

    AT_ONCE = auto()
    DRAINED = auto()
    NEVER = auto()


DrainRule = Callable[[int], Admission]
"""Returns when a subnet may be admitted."""


def drain_before(subnets: Container[int]) -> DrainRule:
    """Return a rule that drains the pipeline before each of some subnets."""
    return lambda subnet: Admission.DRAINED if subnet in subnets else Admission.AT_ONCE


def never_drain(subnet: int) -> Admission:
    """Admit every subnet at once."""
    return Admission.AT_ONCE
