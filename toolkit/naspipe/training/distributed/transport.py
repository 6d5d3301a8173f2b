"""The transport between processes: results are sent and received by torch.distributed.

A channel connects two neighbouring stages in one direction. Within a channel, both sides post sends and receives in the
plan's order, because NCCL runs the operations of one connection in order, whatever their tags. Separate channels ensure
that a receive that was posted ahead does not delay the other direction, or another neighbour.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed
from torch.utils import _pytree as pytree  # flattens any nest; torch offers no public one

from naspipe.errors import TrainingError
from naspipe.pipeline.action import Kind, PlannedAction
from naspipe.pipeline.parts import PipelineParts
from naspipe.training.distributed.launcher import LOST
from naspipe.training.tensor_spec import PayloadSpec, TensorSpec, message_bytes, pack, unpack
from naspipe.training.transport import Gradients, InProcess, Unit

Channels = dict[tuple[int, int], distributed.ProcessGroup]
"""For every pair (source stage, target stage) of neighbours the process group of their messages."""

MAX_SENDS = 16
"""Number of unfinished sends above which the oldest is waited for."""


class _Expected(NamedTuple):
    """A message that this process will receive."""

    buffer: Tensor
    work: Any
    source: int
    text: str
    spec: PayloadSpec
    stamp: bytes


class Distributed:
    """Sends results to other processes by torch.distributed; each process has one stage.

    All processes walk one plan. Each pair of neighbours has a channel for each direction; within it, messages are
    sent and received in the order of their numbers, which are their tags. Receives are posted when their action is
    announced, a sent buffer lives until its send is done, and a send is waited for only once every earlier-numbered
    receive here has been posted, so that processes cannot wait for each other in a circle.
    """

    def __init__(
        self,
        stage: int,
        parts: PipelineParts,
        result_spec: Callable[[PlannedAction], PayloadSpec],
        timeout: float,
        channels: Channels,
        device: str,
    ) -> None:
        """Use channels that are connected.

        Args:
            stage: The stage of this process; also its rank.
            parts: The parts of the whole pipeline.
            result_spec: Returns the payload spec of an action's result.
            timeout: Seconds after which a wait fails.
            channels: The channels of this process.
            device: Device of received tensors.
        """
        self._channels = channels
        backend = distributed.get_backend(next(iter(channels.values()))) if channels else "gloo"
        self._message_device = _message_device(backend)
        self._device = device
        self._stage = stage
        self._parts = parts
        self._result_spec = result_spec
        self._timeout = timedelta(seconds=timeout)
        self._local = InProcess()
        self._stamps: dict[int, bytes] = {}
        self._expected: dict[Unit, _Expected] = {}
        self._sent: deque[tuple[Any, Tensor, str]] = deque()

    def announce(self, planned: PlannedAction, stamp: bytes) -> None:
        """Post the receive of the message that an action will send to this process, if it will send one."""
        target = self._parts.target(planned.action)
        if planned.message is not None and planned.action.stage == self._stage:
            self._stamps[planned.message] = stamp
        if planned.message is None or target is None or self._parts.stage(target) != self._stage:
            return
        action = planned.action
        spec = self._result_spec(planned)
        specs = _tensor_specs(action.kind, spec)
        buffer = torch.empty(message_bytes(specs), dtype=torch.uint8, device=self._message_device)
        channel = self._channels[action.stage, self._stage]
        with self._losing(f"waiting for {action}", action.stage):
            work = distributed.irecv(buffer, src=action.stage, group=channel, tag=planned.message)
        unit = Unit(action.kind, action.subnet, action.microbatch, target)
        self._expected[unit] = _Expected(buffer, work, action.stage, str(action), spec, stamp)

    def send(self, planned: PlannedAction, unit: Unit, result: Any) -> None:
        """Send a result, to another process if the target part is there."""
        if planned.message is None:
            self._local.send(planned, unit, result)
            return
        specs = _tensor_specs(unit.kind, self._result_spec(planned))
        if unit.kind is Kind.FORWARD:
            values = [value for value in pytree.tree_leaves(result) if isinstance(value, Tensor)]
            flag = False
        else:
            values, flag = result.slots, result.finite
        message = pack(values, specs, self._stamps.pop(planned.message), flag, self._message_device)
        target = self._parts.stage(unit.part)
        channel = self._channels[self._stage, target]
        with self._losing(f"sending {planned.action}", target):
            work = distributed.isend(message, dst=target, group=channel, tag=planned.message)
        self._sent.append((work, message, str(planned.action)))
        while len(self._sent) > MAX_SENDS:
            self._finish_oldest()

    def receive(self, unit: Unit) -> Any:
        """Wait for a result.

        Raises:
            TrainingError: It did not arrive in time, or the sender follows another plan.
        """
        expected = self._expected.pop(unit, None)
        if expected is None:
            return self._local.receive(unit)
        self._wait(expected.work, f"{expected.text} from stage {expected.source}")
        buffer = expected.buffer.to(self._device)
        received, flag, stamp = unpack(buffer, _tensor_specs(unit.kind, expected.spec))
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
        for slot in expected.spec.slots:
            if isinstance(slot, TensorSpec):
                tensor = next(tensors)
                assert tensor is not None
                values.append(tensor.requires_grad_(slot.requires_grad))
            else:
                values.append(slot)
        return pytree.tree_unflatten(values, expected.spec.structure)

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
                waited = f"stage {self._stage} waited for {what}, whose process {LOST}"
            raise TrainingError(f"{waited}: {error}") from error

    @contextlib.contextmanager
    def _losing(self, what: str, other: int) -> Iterator[None]:
        """Name the stage whose process has been lost."""
        try:
            yield
        except RuntimeError as error:
            raise TrainingError(
                f"stage {self._stage} failed {what}: the process of stage {other} {LOST}: {error}"
            ) from error


def _tensor_specs(kind: Kind, spec: PayloadSpec) -> list[TensorSpec]:
    """Return the tensor specs of a message: all of an activation, or those of gradients."""
    if kind is Kind.FORWARD:
        return spec.tensors
    # Gradients have one slot for every leaf of the payload; a leaf without a gradient takes no bytes.
    return [
        slot if isinstance(slot, TensorSpec) and slot.requires_grad else TensorSpec(torch.uint8, (0,), False)
        for slot in spec.slots
    ]


def connect_stages(backend: str, stages: int, timeout: float) -> Channels:
    """Connect all neighbouring stages; every process of the default group calls it.

    Args:
        backend: ``gloo`` or ``nccl``.
        stages: Pipeline stages; a stage's number is its rank.
        timeout: Seconds after which a wait fails.
    """
    pairs = [pair for left in range(stages - 1) for pair in ((left, left + 1), (left + 1, left))]
    channels: Channels = {}
    for pair in pairs:
        group = distributed.new_group(list(pair), timeout=timedelta(seconds=timeout), backend=backend)
        if distributed.get_rank() in pair:
            channels[pair] = group
    # NCCL connects two processes by their first message, for which both must be ready; here all are, in one order.
    greeting = torch.zeros(1, dtype=torch.uint8, device=_message_device(backend))
    for (source, target), group in channels.items():
        if distributed.get_rank() == source:
            distributed.send(greeting, dst=target, group=group)
        else:
            distributed.recv(greeting, src=source, group=group)
    return channels


def _message_device(backend: str) -> str:
    """Return the device of a backend's messages: gloo uses the CPU, whatever device trains."""
    return "cuda" if backend == "nccl" else "cpu"
