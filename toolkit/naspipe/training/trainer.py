"""The trainer: runs the actions of the plan that belong to the parts in this process."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from naspipe.config.schema import TrainingConfig
from naspipe.errors import TrainingError
from naspipe.pipeline.action import Action, Kind, PlannedAction
from naspipe.pipeline.parts import PipelineParts
from naspipe.space import Architecture
from naspipe.training.feed import SubnetFeed, SubnetInFlight
from naspipe.training.part import Part
from naspipe.training.plan_walk import Drain, PlanWalk
from naspipe.training.recorder import NO_RECORDER, NoRecorder, Recorder
from naspipe.training.schedule import schedule_factor
from naspipe.training.stage_model import StageModel
from naspipe.training.tensor_spec import PayloadSpec, spec_of
from naspipe.training.transport import Gradients, Transport, Unit


@dataclass(frozen=True)
class SubnetRecord:
    """The result of training a subnet.

    Attributes:
        index: Its place in the sequence.
        architecture: Its architecture.
        loss: Mean loss over its batch, before its update; None if it was not finite, and so nothing was updated.
        lr: Learning rate of its update.
    """

    index: int
    architecture: Architecture
    loss: float | None
    lr: float


class SupernetTrainer:
    """Trains a supernet: all stages in this process, or one of them.

    Sequential training is the case of one stage. Each process walks the whole plan in the order of its starts and runs
    its own actions; a transport passes results between parts.
    """

    def __init__(
        self, model: StageModel, feed: SubnetFeed, walk: PlanWalk, parts: PipelineParts, config: TrainingConfig
    ) -> None:
        """Prepare the training; nothing is computed yet.

        Args:
            model: The blocks of this process, trained in place.
            feed: Subnets and batches.
            walk: The actions of the plan.
            parts: The parts of the whole pipeline.
            config: The training's settings.
        """
        self._model = model
        self._feed = feed
        self._walk = walk
        self._parts = parts
        self._config = config
        self._unfinished: dict[int, int] = {}

    def run(
        self,
        transport: Transport,
        loss: Callable[[Any, Any], Tensor],
        on_subnet: Callable[[SubnetRecord], None],
        on_drain: Callable[[Drain], None] = lambda drain: None,
        recorder: Recorder | None = None,
    ) -> int:
        """Train all subnets of the plan.

        Args:
            transport: Passes results between parts.
            loss: The task's summed loss.
            on_subnet: Called for each subnet in order, once it has been trained; in the process of the last
                stage, which knows the loss.
            on_drain: Called at each drain, when all subnets so far have been updated in this process.
            recorder: Records the actions of this process with times and versions, or None.

        Returns:
            The number of subnets that have been trained, those before the first included.

        Raises:
            TrainingError: A loss was not finite, or a block failed.
        """
        # Subnets may end out of order; ``on_subnet`` is called in order.
        ended: dict[int, SubnetRecord] = {}
        reported = self._walk.taken

        def announce(planned: PlannedAction, stamp: bytes) -> None:
            with self._naming(planned.action):
                transport.announce(planned, stamp)

        for planned in self._walk.actions(announce, on_drain):
            action = planned.action
            if self._parts.of(action) not in self._model.parts:
                continue
            with self._naming(action):
                record = self._perform(planned, transport, loss, recorder or NO_RECORDER)
            if record is not None:
                ended[record.index] = record
            while reported in ended:
                on_subnet(ended.pop(reported))
                reported += 1
        transport.finish()
        drain = self._walk.final_drain()
        if drain is not None:
            on_drain(drain)
        return self._walk.taken

    def result_spec(self, planned: PlannedAction) -> PayloadSpec:
        """Return the payload spec at the boundary that an action's result crosses."""
        assert self._model.specs is not None, "a transport between processes needs the supernet on the meta device"
        action = planned.action
        boundary = planned.end_block if action.kind is Kind.FORWARD else planned.first_block
        subnet = self._feed.loaded(action.subnet)
        return self._model.specs.after(boundary, subnet.architecture, self._input_spec(action))

    def _input_spec(self, action: Action) -> PayloadSpec:
        return spec_of(self._feed.loaded(action.subnet).batches[action.microbatch].inputs)

    @contextlib.contextmanager
    def _naming(self, action: Action) -> Iterator[None]:
        """Name the action and the subnet in which an exception is raised."""
        architecture = self._feed.subnet(action.subnet).architecture
        try:
            yield
        except Exception as error:
            text = self._model.supernet.space.format(architecture)
            where = f"supernet training, action {action}, subnet {action.subnet} ({text})"
            if isinstance(error, TrainingError):
                raise TrainingError(f"{where}: {error}") from error.__cause__ or error
            raise TrainingError(f"{where} failed: {type(error).__name__}: {error}") from error

    def _perform(
        self,
        planned: PlannedAction,
        transport: Transport,
        loss: Callable[[Any, Any], Tensor],
        recorder: Recorder | NoRecorder,
    ) -> SubnetRecord | None:
        """Run an action; return the subnet's record after its last action, in the process that knows the loss."""
        action = planned.action
        number = self._parts.of(action)
        part = self._model.parts[number]
        if action.kind is Kind.UPDATE:
            versions = part.versions_to_update(action.subnet) if recorder.wanted else []
            recorder.start()
            record = self._update(action.subnet, number)
            recorder.end(planned, versions)
            return record
        received = self._receive(action, transport)
        recorder.start()
        if action.kind is Kind.FORWARD:
            result = self._forward(planned, received)
            if self._parts.target(action) is None:
                self._compute_loss(part, action, result, loss)
        else:
            result = self._backward(action, received)
        recorder.end(planned, part.versions_read(action.subnet) if recorder.wanted else [])
        self._send(planned, result, transport)
        return None

    def _receive(self, action: Action, transport: Transport) -> Any:
        """Return the result of another part that an action needs; None: it starts from data or from the loss."""
        if self._parts.source(action) is None:
            return None
        return transport.receive(Unit(action.kind, action.subnet, action.microbatch, self._parts.of(action)))

    def _send(self, planned: PlannedAction, result: Any, transport: Transport) -> None:
        """Pass an action's result on to the part that needs it, if there is one."""
        action = planned.action
        target = self._parts.target(action)
        if target is None:
            return
        if action.kind is Kind.FORWARD and target not in self._model.parts:
            self._check_sent(planned)
        transport.send(planned, Unit(action.kind, action.subnet, action.microbatch, target), result)

    def _check_sent(self, planned: PlannedAction) -> None:
        """Check that the receiving process expects the tensor spec of this activation."""
        action = planned.action
        passed = self._model.parts[self._parts.of(action)].passed
        blocks = range(planned.first_block, planned.end_block)
        architecture = self._feed.subnet(action.subnet).architecture
        self._model.check.check_sent(blocks, architecture, passed, self._input_spec(action))

    def _forward(self, planned: PlannedAction, received: Any) -> Any:
        action = planned.action
        number, subnet = self._parts.of(action), self._feed.subnet(action.subnet)
        payload = received if number else self._feed.loaded(action.subnet).batches[action.microbatch].inputs
        layers = subnet.layers[planned.first_block : planned.end_block]
        part = self._model.parts[number]
        return part.forward(action.subnet, subnet.architecture, action.microbatch, payload, layers)

    def _compute_loss(self, part: Part, action: Action, output: Any, loss: Callable[[Any, Any], Tensor]) -> None:
        subnet = self._feed.loaded(action.subnet)
        targets, weight = subnet.batches[action.microbatch].targets, subnet.weight
        value = float(part.loss(action.subnet, action.microbatch, output, lambda x: loss(x, targets) / weight).item())
        if not math.isfinite(value):
            if self._config.on_nonfinite == "stop":
                raise TrainingError(
                    f"the loss must be finite, but is {value}. Lower training.optimizer.lr, set training.clip_norm, "
                    "or let such subnets update nothing: training.on_nonfinite=skip."
                )
            subnet.finite = False
        subnet.losses.append(value)

    def _backward(self, action: Action, received: Gradients | None) -> Gradients:
        subnet = self._feed.subnet(action.subnet)
        if received is not None:
            subnet.finite = subnet.finite and received.finite
        slots = None if received is None else received.slots
        back = self._model.parts[self._parts.of(action)].backward(action.subnet, action.microbatch, slots)
        return Gradients(back, subnet.finite)

    def _update(self, index: int, part: int) -> SubnetRecord | None:
        """Update a part's layers; return the subnet's record as ``_perform`` does."""
        config, subnet = self._config, self._feed.subnet(index)
        lr = self._model.optimizers.lr * schedule_factor(config.schedule, index, config.subnets)
        self._model.parts[part].update(index, lr, skip=not subnet.finite)
        unfinished = self._unfinished.pop(index, len(self._model.parts)) - 1
        if unfinished:
            self._unfinished[index] = unfinished
            return None
        return self._end(index, self._feed.end(index), lr)

    def _end(self, index: int, subnet: SubnetInFlight, lr: float) -> SubnetRecord | None:
        if self._parts.last not in self._model.parts:
            return None  # Only the last part knows the loss.
        loss = math.fsum(subnet.losses) if subnet.finite else None
        return SubnetRecord(index, subnet.architecture, loss, lr)
