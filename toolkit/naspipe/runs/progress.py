"""Progress: how a running phase tells whoever watches how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """One report of a running phase.

    Attributes:
        phase: ``train``, ``search`` or ``retrain``; of a rank check ``score``, ``untrained`` or ``truth``.
        done: Steps done: subnets, trials, epochs or architectures.
        total: Steps in all.
        detail: What the last step gave, for people; or the phase's last word.
    """

    phase: str
    done: int
    total: int
    detail: str


Watch = Callable[[Progress], None]


def ignore(progress: Progress) -> None:
    """Watch nothing."""
