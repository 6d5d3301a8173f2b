"""Transports pass results between parts; the one of this module does so within a process.

The trainer announces every planned action to a transport some time before the action runs. It sends the result of an
action, and receives the results that an action needs. A result is identified by its unit and by the part that needs it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from naspipe.pipeline.action import Kind, PlannedAction
from naspipe.training.boundary import Slots, detach_payload


class Unit(NamedTuple):
    """Identifies a result.

    Attributes:
        kind: FORWARD of an activation, BACKWARD of gradients.
        subnet: Place of the subnet in the sequence.
        microbatch: Index of the micro-batch.
        part: The part that needs the result.
    """

    kind: Kind
    subnet: int
    microbatch: int
    part: int


class Gradients(NamedTuple):
    """The gradients that go back through a boundary.

    Attributes:
        slots: The gradient of each leaf of the payload; None where there is no gradient.
        finite: Whether the subnet's losses were finite; certain with its last micro-batch.
    """

    slots: Slots
    finite: bool


class Transport(Protocol):
    """Passes activations and gradients between parts."""

    def announce(self, planned: PlannedAction, stamp: bytes) -> None:
        """Prepare for a planned action before it runs; called for every action of the plan, in order.

        Args:
            planned: The action.
            stamp: Digest of the plan up to this action and of the subnets so far, ``STAMP_BYTES`` long. Processes with
                different stamps have planned different actions.
        """

    def send(self, planned: PlannedAction, unit: Unit, result: Any) -> None:
        """Send an action's result: a payload or ``Gradients``."""

    def receive(self, unit: Unit) -> Any:
        """Return a result that was sent."""

    def finish(self) -> None:
        """Wait until everything that was sent has been received."""


class InProcess:
    """Keeps results until they are received; all parts are in this process."""

    def __init__(self) -> None:
        self._results: dict[Unit, Any] = {}

    def announce(self, planned: PlannedAction, stamp: bytes) -> None:
        """Do nothing: there is nothing to prepare."""

    def send(self, planned: PlannedAction, unit: Unit, result: Any) -> None:
        """Keep a result."""
        self._results[unit] = detach_payload(result) if unit.kind is Kind.FORWARD else result

    def receive(self, unit: Unit) -> Any:
        """Return a result, once."""
        return self._results.pop(unit)

    def finish(self) -> None:
        """Check that every result was received."""
        assert not self._results, f"results that were not received: {list(self._results)}"
