"""What a training tells its listeners: subnets that have been trained, and drains of the pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from naspipe.space import Architecture


@dataclass(frozen=True)
class SubnetRecord:
    """What is known of a subnet once it has been trained.

    Attributes:
        index: Its place in the sequence.
        architecture: Its architecture.
        loss: Mean loss over its batch, before its update; None if it was not finite: then it updated nothing.
        lr: Learning rate of its update.
    """

    index: int
    architecture: Architecture
    loss: float | None
    lr: float


class Drain(NamedTuple):
    """A moment at which all subnets so far have been updated and no other has begun.

    Attributes:
        subnet: The next subnet.
        sampler: The sampler's state before it draws that.
    """

    subnet: int
    sampler: dict[str, Any]
