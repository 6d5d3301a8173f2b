"""Transports: how results pass between parts; here the one within a process.

The trainer tells a transport of every planned action some time before it runs, and of its result when it has
run; it asks for what an action needs. Results are named by the unit they belong to and the part that needs them.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from naspipe.pipeline.action import Kind, PlannedAction
from naspipe.training.boundary import Slots, detach_payload


class Unit(NamedTuple):
    """What a result belongs to, and who needs it.

    Attributes:
        kind: FORWARD for an activation, BACKWARD for gradients.
        subnet: Place of the subnet in the sequence.
        microbatch: Index of the micro-batch.
        part: The part that needs it.
    """

    kind: Kind
    subnet: int
    microbatch: int
    part: int


class Gradients(NamedTuple):
    """What flows back through a boundary.

    Attributes:
        slots: The gradient of each leaf of the payload; None where there is none.
        finite: Whether the subnet's losses were finite; certain with its last micro-batch.
    """

    slots: Slots
    finite: bool


class Transport(Protocol):
    """Passes activations and gradients between parts."""

    def announce(self, planned: PlannedAction, stamp: bytes) -> None:
        """Learn of a planned action before it runs; every action of the plan, in its order.

        Args:
            planned: The action.
            stamp: Digest of the plan up to it and of the subnets so far, ``STAMP_BYTES`` long: processes with
                another stamp have planned something else.
        """

    def send(self, planned: PlannedAction, unit: Unit, result: Any) -> None:
        """Pass an action's result on: a payload, or its ``Gradients``."""

    def receive(self, unit: Unit) -> Any:
        """Return a result that was passed on."""

    def finish(self) -> None:
        """Wait until everything that was sent has been received."""


class InProcess:
    """Keeps results until they are asked for; all parts are in this process."""

    def __init__(self) -> None:
        self._results: dict[Unit, Any] = {}

    def announce(self, planned: PlannedAction, stamp: bytes) -> None:
        """Do nothing: there is nothing to prepare."""

    def send(self, planned: PlannedAction, unit: Unit, result: Any) -> None:
        """Keep a result."""
        self._results[unit] = detach_payload(result) if unit.kind is Kind.FORWARD else result

    def receive(self, unit: Unit) -> Any:
        """Hand a result out, once."""
        return self._results.pop(unit)

    def finish(self) -> None:
        """Check that nothing was left."""
        assert not self._results, f"results that nobody asked for: {list(self._results)}"
