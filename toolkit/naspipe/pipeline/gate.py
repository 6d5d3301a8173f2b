"""Gates: at which subnets a pipeline is drained, so that all before them are updated before the next is read."""

from __future__ import annotations

from collections.abc import Callable, Container
from enum import Enum, auto


class Passage(Enum):
    """What a gate says of a subnet.

    Attributes:
        OPEN: It may be admitted beside others.
        DRAINED: It may be admitted once all before it have been updated everywhere.
        END: It and all later ones are not trained.
    """

    OPEN = auto()
    DRAINED = auto()
    END = auto()


Gate = Callable[[int], Passage]


def drained_at(cuts: Container[int]) -> Gate:
    """Return a gate that drains the pipeline before some subnets."""
    return lambda subnet: Passage.DRAINED if subnet in cuts else Passage.OPEN


def open_gate(subnet: int) -> Passage:
    """Admit every subnet beside others."""
    return Passage.OPEN
