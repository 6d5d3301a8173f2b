"""Progress: the reports of a running phase."""

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
        detail: The result of the last step, for people; or the phase's last message.
    """

    phase: str
    done: int
    total: int
    detail: str

    @classmethod
    def of_subnet(cls, index: int, loss: float | None, subnets: int) -> Progress:
        """Return the report of a subnet that has been trained."""
        detail = "loss not finite" if loss is None else f"loss {loss:.4f}"
        return cls("train", index + 1, subnets, detail)


Watch = Callable[[Progress], None]
"""Called with each report."""


def ignore(progress: Progress) -> None:
    """Watch nothing."""
