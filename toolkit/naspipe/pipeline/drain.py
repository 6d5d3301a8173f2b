"""Drains: subnets that are admitted only once all before them have been updated everywhere."""

from __future__ import annotations

from collections.abc import Callable, Container
from enum import Enum, auto


class Admission(Enum):
    """When a subnet may be admitted.

    Attributes:
        AT_ONCE: Beside others.
        DRAINED: Once all before it have been updated everywhere.
        NEVER: It and all later ones are not trained.
    """

    AT_ONCE = auto()
    DRAINED = auto()
    NEVER = auto()


DrainRule = Callable[[int], Admission]
"""Says of a subnet when it may be admitted."""


def drain_before(subnets: Container[int]) -> DrainRule:
    """Return a rule that drains the pipeline before some subnets."""
    return lambda subnet: Admission.DRAINED if subnet in subnets else Admission.AT_ONCE


def never_drain(subnet: int) -> Admission:
    """Admit every subnet beside others."""
    return Admission.AT_ONCE
