"""What a training tells whoever listens: subnets that have been trained, and places where its plan was cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from naspipe.space import Architecture


@dataclass(frozen=True)
class SubnetRecord:
    """What is known of a subnet once it has been trained.

    Attributes:
        index: Its place in the sequence.
        architecture: What it is.
        loss: Mean loss over its batch, before its update; None if it was not finite: then it updated nothing.
        lr: Learning rate of its update.
    """

    index: int
    architecture: Architecture
    loss: float | None
    lr: float


class Cut(NamedTuple):
    """A place at which a plan is cut in two.

    Attributes:
        subnet: The first subnet behind it.
        sampler: The sampler's state before it draws that.
    """

    subnet: int
    sampler: dict[str, Any]
