"""The training loop: walks the plan, and does the actions of the stages that are in this process."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from naspipe.config.schema import TrainingConfig
from naspipe.errors import TrainingError
from naspipe.pipeline.action import Action, Kind, PlannedAction
from naspipe.pipeline.partition import Cuts
from naspipe.pipeline.planner import Planner
from naspipe.search.sampler import Sampler
from naspipe.space import Architecture
from naspipe.supernet.supernet import Supernet
from naspipe.tasks.data import Batch, Dataset, EpochOrder, move_batch, require_parts, split_batch
from naspipe.tasks.task import Task
from naspipe.training.determinism import autocast
from naspipe.training.events import Cut, SubnetRecord
from naspipe.training.forms import Forms
from naspipe.training.layers import Layer
from naspipe.training.part import Part
from naspipe.training.recorder import NO_RECORDER, NoRecorder, Recorder
from naspipe.training.schedule import OptimizerFactory, schedule_factor
from naspipe.training.signature import STAMP_BYTES, Signature, Signatures, signature_of
from naspipe.training.transport import Gradients, InProcess, Transport, Unit

LOOKAHEAD = 64
"""Actions that a transport learns of before they run."""


Connect = Callable[[Callable[[PlannedAction], Signature]], Transport]


@dataclass
class _Subnet:
    """A subnet in flight."""

    architecture: Architecture
    uses: list[list[str]]
    unfinished: int
    batches: list[Batch] = field(default_factory=list)
    weight: float = 0.0
    losses: list[float] = field(default_factory=list)
    finite: bool = True


class SupernetTrainer:
    """Trains a supernet: all stages in this process, or one of them.

    Sequential training is its one-stage case. What is planned is what runs: each process walks the whole plan in
    the order of its starts and does its own actions; a transport passes results between parts.
    """

    def __init__(
        self,
        supernet: Supernet,
        task: Task,
        data: Dataset,
        sampler: Sampler,
        planner: Planner,
        cuts: Cuts,
        config: TrainingConfig,
        seed: int,
        stage: int | None = None,
        connect: Connect = lambda signature: InProcess(),
        meta: Supernet | None = None,
        recompute: bool = False,
        first: int = 0,
        is_cut: Callable[[int], bool] = lambda subnet: False,
    ) -> None:
        """Prepare the training; nothing is computed yet.

        Args:
            supernet: Trained in place, on ``config.device``.
            task: Gives loss and weight.
            data: The training split.
            sampler: Says which subnet comes next; it has been started, and draws what the planner's draws, from
                ``first`` on.
            planner: Says which action comes next; it has not run.
            cuts: The partition into parts, the same for all subnets.
            config: The settings.
            seed: The run's seed.
            stage: The stage that is in this process, or None: all are.
            connect: Makes the transport, given what tells the signature of an action's result.
            meta: The supernet on the meta device; needed by transports between processes.
            recompute: Run blocks again in their backward instead of keeping what they computed.
            first: The first subnet to train; the planner's too.
            is_cut: Tells whether the plan, as far as it has come, updates everything before a subnet first.

        Raises:
            InputError: A batch would have fewer samples than micro-batches.
        """
        self._order = EpochOrder(data, config.batch_size, seed, "train")
        require_parts(len(data), config.batch_size, config.microbatches, "training.microbatches")
        self._supernet = supernet.train()
        for block in supernet:
            # Blocks of other processes may have no memory.
            if not any(parameter.is_meta for parameter in block.parameters()):
                block.to(config.device)
        self._task = task
        self._sampler = sampler
        self._planner = planner
        self._cuts = cuts
        self._config = config
        self._optimizers = OptimizerFactory(config.optimizer)
        self.layers = [
            {
                spec.name: Layer(
                    spec,
                    self._optimizers,
                    delay=None if spec.strict else config.delay,
                    clip_norm=config.clip_norm,
                )
                for spec in specs.values()
            }
            for specs in supernet.layers_by_block
        ]
        surround = partial(autocast, config.precision, config.device)
        # The meta device knows no autocast: there the blocks themselves must tell what they return.
        known = meta if config.precision == "fp32" else supernet
        self._signatures = Signatures(known, config.device, surround) if known is not None else None
        blocks = list(supernet)
        self._forms = Forms(blocks, self._signatures)
        segments = planner.shape.segments
        self._parts = {
            number: Part(blocks[start:end], self.layers[start:end], start, seed, recompute, surround, self._forms)
            for number, (start, end) in enumerate(itertools.pairwise(cuts))
            if stage is None or number // segments == stage
        }
        self._last_part = len(cuts) - 2
        self._transport = connect(self._signature)
        # What has been planned and drawn so far, by which processes know that they do the same.
        self._plan = hashlib.blake2b(digest_size=STAMP_BYTES)
        self._drawn = first
        self._first = first
        self._is_cut = is_cut
        # The sampler's state where the plan is cut, until everything before has been done.
        self._noted: Cut | None = None
        self._subnets: dict[int, _Subnet] = {}

    def own_layers(self) -> Iterator[Layer]:
        """Yield the layers of the parts that are in this process."""
        for number in self._parts:
            for block in self.layers[self._cuts[number] : self._cuts[number + 1]]:
                yield from block.values()

    def run(
        self,
        on_subnet: Callable[[SubnetRecord], None],
        recorder: Recorder | None = None,
        on_cut: Callable[[Cut], None] = lambda cut: None,
    ) -> int:
        """Train all subnets that are planned.

        Args:
            on_subnet: Called for each subnet in order, once it has been trained; in the process of the last
                stage, which knows the loss.
            recorder: Notes what each action here took and saw, or None.
            on_cut: Called where the plan is cut: all subnets before have been updated here, and no other has begun.

        Returns:
            The number of subnets that have been trained, those before the first included.

        Raises:
            TrainingError: A loss was not finite, or a block failed.
        """
        # Subnets may end out of order; whoever listens gets them in order.
        ended: dict[int, SubnetRecord] = {}
        reported = self._first
        for planned in self._announced(on_cut):
            action = planned.action
            if self._part_of(action) not in self._parts:
                continue
            with self._naming(action):
                self._perform(planned, ended, recorder or NO_RECORDER)
            while reported in ended:
                on_subnet(ended.pop(reported))
                reported += 1
        self._transport.finish()
        if self._is_cut(self._drawn):
            self._note_cut()
            self._cut(on_cut)
        return self._drawn

    def _note_cut(self) -> None:
        """Keep what a checkpoint needs to know of the sampler."""
        assert self._noted is None, "between two cuts there is an action"
        self._noted = Cut(self._drawn, copy.deepcopy(self._sampler.state()))

    def _cut(self, on_cut: Callable[[Cut], None]) -> None:
        """Say that everything before the cut that was noted has been done here."""
        assert self._noted is not None
        cut, self._noted = self._noted, None
        on_cut(cut)

    def _announced(self, on_cut: Callable[[Cut], None]) -> Iterator[PlannedAction]:
        """Yield the plan's actions, each some time after the transport has learnt of it.

        Processes wait for each other at a cut, so nothing is planned beyond it until it has been passed: what one
        planned further, another would have to decide, which waits at the cut.
        """
        waiting: deque[PlannedAction] = deque()
        for planned in self._planner.run():
            self._draw_up_to(planned.action.subnet)
            if self._noted is not None:
                # The first action behind the cut.
                while waiting:
                    yield waiting.popleft()
                self._cut(on_cut)
            self._plan.update(repr(planned).encode())
            with self._naming(planned.action):
                self._transport.announce(planned, self._plan.digest())
            waiting.append(planned)
            if len(waiting) > LOOKAHEAD:
                yield waiting.popleft()
        yield from waiting

    def _part_of(self, action: Action) -> int:
        return action.stage * self._planner.shape.segments + action.segment

    def _signature(self, planned: PlannedAction) -> Signature:
        """Return the signature of what crosses the boundary that an action's result passes."""
        assert self._signatures is not None, "a transport between processes needs the supernet on the meta device"
        action = planned.action
        subnet = self._loaded(action.subnet)
        boundary = planned.end_block if action.kind is Kind.FORWARD else planned.first_block
        inputs = signature_of(subnet.batches[action.microbatch].inputs)
        return self._signatures.after(boundary, subnet.architecture, inputs)

    @contextlib.contextmanager
    def _naming(self, action: Action) -> Iterator[None]:
        """Name the action and the subnet at which an exception is raised."""
        architecture = self._subnets[action.subnet].architecture
        try:
            yield
        except Exception as error:
            text = self._supernet.space.format(architecture)
            where = f"supernet training, action {action}, subnet {action.subnet} ({text})"
            if isinstance(error, TrainingError):
                raise TrainingError(f"{where}: {error}") from error.__cause__ or error
            raise TrainingError(f"{where} failed: {type(error).__name__}: {error}") from error

    def _draw_up_to(self, index: int) -> None:
        """Draw subnets in order; a later one may be the first to start."""
        while self._drawn <= index:
            if self._is_cut(self._drawn):
                self._note_cut()
            try:
                architecture = self._supernet.space.architecture(self._sampler.draw(self._drawn))
                used = self._supernet.used_layers(architecture)
            except Exception as error:
                raise TrainingError(
                    f"supernet training, subnet {self._drawn}: sampler {type(self._sampler).__name__} failed: "
                    f"{type(error).__name__}: {error}"
                ) from error
            uses = [[layer.name for layer in block] for block in used]
            self._plan.update(architecture.to_json().encode())
            self._subnets[self._drawn] = _Subnet(architecture, uses, unfinished=len(self._parts))
            self._drawn += 1

    def _perform(self, planned: PlannedAction, ended: dict[int, SubnetRecord], recorder: Recorder | NoRecorder) -> None:
        action = planned.action
        part = self._parts[self._part_of(action)]
        if action.kind is Kind.UPDATE:
            versions = part.versions_to_update(action.subnet) if recorder.wanted else []
            recorder.start()
            record = self._update(action.subnet, self._part_of(action))
            recorder.end(planned, versions)
            if record is not None:
                ended[action.subnet] = record
            return
        received = self._receive(planned)
        recorder.start()
        run = self._forward if action.kind is Kind.FORWARD else self._backward
        result = run(planned, received)
        recorder.end(planned, part.versions_read(action.subnet) if recorder.wanted else [])
        self._send(planned, result)

    def _receive(self, planned: PlannedAction) -> Any:
        """Return what an action needs of another part; None where it starts from data or the loss."""
        _, kind, index, microbatch, _ = planned.action
        number = self._part_of(planned.action)
        if number == (0 if kind is Kind.FORWARD else self._last_part):
            return None
        return self._transport.receive(Unit(kind, index, microbatch, number))

    def _send(self, planned: PlannedAction, result: Any) -> None:
        """Pass an action's result on to the part that needs it, if there is one."""
        _, kind, index, microbatch, _ = planned.action
        target = self._part_of(planned.action) + (1 if kind is Kind.FORWARD else -1)
        if 0 <= target <= self._last_part:
            if kind is Kind.FORWARD and target not in self._parts:
                self._check_sent(planned)
            self._transport.send(planned, Unit(kind, index, microbatch, target), result)

    def _check_sent(self, planned: PlannedAction) -> None:
        """Make sure that the process which an activation goes to expects what it is."""
        subnet = self._subnets[planned.action.subnet]
        passed = self._parts[self._part_of(planned.action)].passed
        blocks = range(planned.first_block, planned.end_block)
        inputs = signature_of(self._loaded(planned.action.subnet).batches[planned.action.microbatch].inputs)
        self._forms.check_sent(blocks, subnet.architecture, passed, inputs)

    def _forward(self, planned: PlannedAction, received: Any) -> Any:
        _, _, index, microbatch, _ = planned.action
        number = self._part_of(planned.action)
        part, subnet = self._parts[number], self._subnets[index]
        payload = received if number else self._loaded(index).batches[microbatch].inputs
        uses = subnet.uses[planned.first_block : planned.end_block]
        output = part.forward(index, subnet.architecture, microbatch, payload, uses)
        if number == self._last_part:
            self._compute_loss(part, index, microbatch, output)
        return output

    def _compute_loss(self, part: Part, index: int, microbatch: int, output: Any) -> None:
        subnet = self._loaded(index)
        targets, weight = subnet.batches[microbatch].targets, subnet.weight

        def loss(outputs: object) -> Tensor:
            return self._task.loss(outputs, targets) / weight

        value = float(part.loss(index, microbatch, output, loss).item())
        if not math.isfinite(value):
            if self._config.on_nonfinite == "stop":
                raise TrainingError(
                    f"the loss must be finite, but is {value}. Lower training.optimizer.lr, set training.clip_norm, "
                    "or let such subnets update nothing: training.on_nonfinite=skip."
                )
            subnet.finite = False
        subnet.losses.append(value)

    def _backward(self, planned: PlannedAction, received: Any) -> Gradients:
        _, _, index, microbatch, _ = planned.action
        subnet = self._subnets[index]
        slots = None
        if received is not None:
            slots, finite = received
            subnet.finite = subnet.finite and finite
        back = self._parts[self._part_of(planned.action)].backward(index, microbatch, slots)
        return Gradients(back, subnet.finite)

    def _loaded(self, index: int) -> _Subnet:
        """Return a subnet with its batch."""
        subnet = self._subnets[index]
        if not subnet.batches:
            try:
                batch = move_batch(self._order.batch(index), self._config.device)
                subnet.weight = self._task.weight(batch.targets)
                subnet.batches = split_batch(batch, self._config.microbatches)
            except Exception as error:
                raise TrainingError(
                    f"batch {index} of the training data failed: {type(error).__name__}: {error}"
                ) from error
        return subnet

    def _update(self, index: int, part: int) -> SubnetRecord | None:
        """Update a part's layers; return the subnet's record if it was the last part here."""
        config, subnet = self._config, self._subnets[index]
        lr = self._optimizers.lr * schedule_factor(config.schedule, index, config.subnets)
        self._parts[part].update(index, lr, skip=not subnet.finite)
        subnet.unfinished -= 1
        if subnet.unfinished:
            return None
        del self._subnets[index]
        if self._last_part not in self._parts:
            return None  # Only the last part knows the loss.
        loss = math.fsum(subnet.losses) if subnet.finite else None
        return SubnetRecord(index, subnet.architecture, loss, lr)
