"""Transports: how results pass between parts, in one process or between processes.

The trainer tells a transport of every planned action some time before it runs, and of its result when it has
run; it asks for what an action needs. Results are named by the unit they belong to and the part that needs them.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, distributed
from torch.utils import _pytree as pytree  # flattens any nest; torch offers no public one

from naspipe.errors import TrainingError
from naspipe.pipeline.action import Kind, PlannedAction
from naspipe.training.boundary import Slots, detach_payload
from naspipe.training.channels import Channels, message_device
from naspipe.training.signature import Signature, TensorForm, message_bytes, pack, unpack


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


class _Expected(NamedTuple):
    """A message that is on its way here."""

    buffer: Tensor
    work: Any
    source: int
    text: str
    signature: Signature
    stamp: bytes


class Distributed:
    """Sends results to other processes by torch.distributed, one process a stage.

    All processes walk one plan. Each pair of neighbours has a channel for each direction; within it, messages are
    sent and received in the order of their numbers, which are their tags. Receives are posted when their action is
    announced, a sent buffer lives until its send is done, and a send is waited for only once every earlier-numbered
    receive here has been posted, so that processes cannot wait for each other in a circle.
    """

    def __init__(
        self,
        stage: int,
        segments: int,
        signature: Callable[[PlannedAction], Signature],
        timeout: float,
        channels: Channels,
        device: str,
    ) -> None:
        """Use the connections that there are.

        Args:
            stage: The stage of this process; also its rank.
            segments: Segments of each stage.
            signature: Gives the signature of what crosses the boundary that an action's result passes.
            timeout: Seconds after which a wait fails.
            channels: The connections to its neighbours.
            device: Where what is received is needed.
        """
        self._channels = channels
        backend = distributed.get_backend(next(iter(channels.values()))) if channels else "gloo"
        self._message_device = message_device(backend)
        self._device = device
        self._stage = stage
        self._segments = segments
        self._signature = signature
        self._timeout = timedelta(seconds=timeout)
        self._local = InProcess()
        self._stamps: dict[int, bytes] = {}
        self._expected: dict[Unit, _Expected] = {}
        self._sent: deque[tuple[Any, Tensor, str]] = deque()

    def announce(self, planned: PlannedAction, stamp: bytes) -> None:
        """Post the receive of a message that will come here."""
        target = self._target(planned)
        if planned.message is not None and planned.action.stage == self._stage:
            self._stamps[planned.message] = stamp
        if planned.message is None or target // self._segments != self._stage:
            return
        action = planned.action
        signature = self._signature(planned)
        forms = _forms(action.kind, signature)
        buffer = torch.empty(message_bytes(forms), dtype=torch.uint8, device=self._message_device)
        channel = self._channels[action.stage, self._stage]
        with self._losing(f"waiting for {action}", action.stage):
            work = distributed.irecv(buffer, src=action.stage, group=channel, tag=planned.message)
        unit = Unit(action.kind, action.subnet, action.microbatch, target)
        self._expected[unit] = _Expected(buffer, work, action.stage, str(action), signature, stamp)

    def send(self, planned: PlannedAction, unit: Unit, result: Any) -> None:
        """Pass a result on, to another process if its part is there."""
        if planned.message is None:
            self._local.send(planned, unit, result)
            return
        forms = _forms(unit.kind, self._signature(planned))
        if unit.kind is Kind.FORWARD:
            values = [value for value in pytree.tree_leaves(result) if isinstance(value, Tensor)]
            flag = False
        else:
            values, flag = result.slots, result.finite
        message = pack(values, forms, self._stamps.pop(planned.message), flag, self._message_device)
        target = unit.part // self._segments
        channel = self._channels[self._stage, target]
        with self._losing(f"sending {planned.action}", target):
            work = distributed.isend(message, dst=target, group=channel, tag=planned.message)
        self._sent.append((work, message, str(planned.action)))
        while len(self._sent) > MAX_SENDS:
            self._finish_oldest()

    def receive(self, unit: Unit) -> Any:
        """Wait for a result.

        Raises:
            TrainingError: It did not come in time.
        """
        expected = self._expected.pop(unit, None)
        if expected is None:
            return self._local.receive(unit)
        self._wait(expected.work, f"{expected.text} from stage {expected.source}")
        buffer = expected.buffer.to(self._device)
        received, flag, stamp = unpack(buffer, _forms(unit.kind, expected.signature))
        if stamp != expected.stamp:
            raise TrainingError(
                f"stages {expected.source} and {self._stage} must plan and draw the same subnets, but differ from "
                f"{expected.text} on or before. A space, sampler or executor depends on something that is not the same "
                "in every process, such as hash(), the order of a set, or the time."
            )
        if unit.kind is Kind.BACKWARD:
            return Gradients(received, flag)
        tensors = iter(received)
        values = []
        for slot in expected.signature.slots:
            if isinstance(slot, TensorForm):
                tensor = next(tensors)
                assert tensor is not None
                values.append(tensor.requires_grad_(slot.requires_grad))
            else:
                values.append(slot)
        return pytree.tree_unflatten(values, expected.signature.structure)

    def finish(self) -> None:
        """Wait for all sends."""
        while self._sent:
            self._finish_oldest()
        self._local.finish()

    def _finish_oldest(self) -> None:
        work, _, text = self._sent.popleft()
        self._wait(work, f"{text} to be received")

    def _wait(self, work: Any, what: str) -> None:
        begin = time.monotonic()
        try:
            work.wait(self._timeout)
        except RuntimeError as error:
            seconds = self._timeout.total_seconds()
            if time.monotonic() - begin >= seconds:
                waited = f"stage {self._stage} waited {seconds:g} s for {what}"
            else:
                waited = f"stage {self._stage} waited for {what}, of which the process {LOST}"
            raise TrainingError(f"{waited}: {error}") from error

    @contextlib.contextmanager
    def _losing(self, what: str, other: int) -> Iterator[None]:
        """Say of which stage the process has been lost."""
        try:
            yield
        except RuntimeError as error:
            raise TrainingError(
                f"stage {self._stage} cannot go on {what}: the process of stage {other} {LOST}: {error}"
            ) from error

    def _target(self, planned: PlannedAction) -> int:
        """Return the part that needs an action's result."""
        action = planned.action
        part = action.stage * self._segments + action.segment
        return part + 1 if action.kind is Kind.FORWARD else part - 1


LOST = "has ended or is out of reach"
"""What a process says of another without which it cannot go on; so the other's failure is the first."""

MAX_SENDS = 16
"""Sends that may be unfinished before the oldest is waited for."""


def _forms(kind: Kind, signature: Signature) -> list[TensorForm]:
    """Return the tensors of a message: of an activation all, of gradients those that can have one."""
    if kind is Kind.FORWARD:
        return signature.forms
    # One slot for every leaf of the payload, as gradients are listed; None takes no bytes.
    return [
        slot if isinstance(slot, TensorForm) and slot.requires_grad else TensorForm(torch.uint8, (0,), False)
        for slot in signature.slots
    ]
