"""A training session: a supernet's training in this process, with its log, checkpoints and weights."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from naspipe.errors import SpaceError
from naspipe.files import JsonLines, keep_lines, save_tensors
from naspipe.pipeline.action import PlannedAction
from naspipe.pipeline.drain import never_drain
from naspipe.pipeline.parts import PipelineParts
from naspipe.supernet.determinism import deterministic
from naspipe.supernet.supernet import Supernet
from naspipe.training.checkpoint import Checkpoint, CheckpointFolder
from naspipe.training.context import RunContext
from naspipe.training.drain_schedule import DrainSchedule
from naspipe.training.feed import SubnetFeed
from naspipe.training.files import TrainingFiles
from naspipe.training.plan_walk import Drain, PlanWalk
from naspipe.training.recorder import RecordedAction, Recorder
from naspipe.training.stage_model import StageModel
from naspipe.training.subnet_stream import SubnetStream
from naspipe.training.tensor_spec import PayloadSpec
from naspipe.training.trainer import SubnetRecord, SupernetTrainer
from naspipe.training.transport import InProcess, Transport


class SessionResult(NamedTuple):
    """The result of a session, without its files.

    Attributes:
        trained: Number of subnets that have been trained, those of earlier sessions included.
        drained: The subnets before which the pipeline was drained.
        digests: Digest of each layer in this process; empty unless they were asked for.
        actions: The actions of this process with times and versions; empty unless they were recorded.
        peak_memory: Peak memory of this process, in MiB.
    """

    trained: int
    drained: list[int]
    digests: dict[str, str]
    actions: list[RecordedAction]
    peak_memory: float


class AllStages:
    """The place of a session with all stages in this process; a subclass has one stage in each process.

    Attributes:
        stage: The stage that is in this process, or None: all are.
        leads: Whether this process completes checkpoints and decides when the pipeline is drained.
        logs: Whether this process has the last stage, which knows the losses, and writes the log.
        processes: Number of processes that train together.
    """

    stage: int | None = None
    leads = True
    logs = True
    processes = 1

    def connect(self, result_spec: Callable[[PlannedAction], PayloadSpec], context: RunContext) -> Transport:
        """Return the transport between the parts.

        Args:
            result_spec: Returns the spec of the payload that an action's result is.
            context: The run.
        """
        return InProcess()

    def find_checkpoint(self, checkpoints: CheckpointFolder) -> Checkpoint | None:
        """Return the checkpoint from which the training is resumed, the same in all processes; None: it begins."""
        return checkpoints.start()

    def schedule_drains(self, context: RunContext, must_stop: Callable[[], bool]) -> DrainSchedule:
        """Return the schedule of drains, the same in all processes."""
        return DrainSchedule(context.config.executor.checkpoint, context.contract, must_stop)

    def wait_for_others(self) -> None:
        """Wait until all processes have come here."""

    def save(self, supernet: Supernet, own: range, files: TrainingFiles, is_finished: bool) -> None:
        """Save the weights of this process.

        Args:
            supernet: The supernet.
            own: The blocks that this process has trained.
            files: The training's files.
            is_finished: Whether all subnets have been trained.
        """
        if is_finished:
            save_tensors(files.supernet, supernet.blocks.state_dict(), {"format": "pt"})


class TrainingSession:
    """Prepares, runs, checkpoints, logs and finishes a supernet's training in this process.

    Runs, stages' processes, profiling and verification all train through it.

    Attributes:
        model: The blocks that train in this process.
        first: The first subnet that is trained; not 0 where a training is resumed.
    """

    def __init__(
        self,
        context: RunContext,
        files: TrainingFiles | None = None,
        place: AllStages | None = None,
        *,
        on_subnet: Callable[[SubnetRecord], None] = lambda record: None,
        recorder: Recorder | None = None,
        must_stop: Callable[[], bool] = lambda: False,
        supernet: Supernet | None = None,
    ) -> None:
        """Prepare the training; nothing is computed or written yet.

        Args:
            context: The run.
            files: Files of log, checkpoints and weights; a training with checkpoints is resumed. None: nothing is kept.
            place: The stages of this process; by default all.
            on_subnet: Called for each subnet in order, once it has been trained; in the process of the last stage.
            recorder: Records the actions with times and versions.
            must_stop: Tells whether the training is asked to stop.
            supernet: An untrained supernet to train in place; by default a new one is built.

        Raises:
            InputError: The layout does not fit.
            RunFolderError: A checkpoint lacks a layer.
        """
        config, planning = context.config, context.planning
        self._context = context
        self._files = files
        self._place = place = place or AllStages()
        self._on_subnet = on_subnet
        self._recorder = recorder
        self._checkpoints = None if files is None else CheckpointFolder(files.checkpoints)
        checkpoint = None if self._checkpoints is None else place.find_checkpoint(self._checkpoints)
        _reset_peak_memory(config.training.device)
        self.first, state = (0, None) if checkpoint is None else (checkpoint.subnet, checkpoint.sampler)
        self._schedule = None if files is None else place.schedule_drains(context, must_stop)
        is_drained = (lambda subnet: False) if self._schedule is None else self._schedule.is_drained
        parts = PipelineParts(config.executor.stages, config.executor.segments)
        own_parts = range(parts.count) if place.stage is None else parts.of_stage(place.stage)
        cuts = planning.cuts
        self._own_blocks = range(cuts[own_parts.start], cuts[own_parts.stop])
        stream = SubnetStream(planning, self.first, state, is_drained)
        feed = SubnetFeed(stream, context.components.task, context.splits.train, config.training, config.seed)
        planner = planning.planner(self.first, stream.shapes(), self._schedule or never_drain)
        walk = PlanWalk(planner, stream, feed, self.first, is_drained)
        with deterministic(config.training.threads, config.training.device):
            self.model = StageModel(
                build_supernet(context, self._own_blocks) if supernet is None else supernet,
                cuts,
                config.training,
                config.seed,
                own_parts=own_parts,
                meta=context.meta_supernet,
                recompute=config.executor.recompute,
            )
        self._trainer = SupernetTrainer(self.model, feed, walk, parts, config.training)
        if checkpoint is not None:
            checkpoint.restore(self.model.own_layers())

    def run(self, digest: bool = False) -> SessionResult:
        """Train.

        Args:
            digest: Digest each layer afterwards.

        Raises:
            TrainingError: The training cannot continue.
            RunFolderError: The log is shorter than the checkpoint says.
            RunError: A file cannot be written.
        """
        training = self._context.config.training
        with deterministic(training.threads, training.device), self._log() as log:
            trained = self._trainer.run(
                self._place.connect(self._trainer.result_spec, self._context),
                self._context.components.task.loss,
                partial(self._end_subnet, log),
                partial(self._write_checkpoint, log),
                self._recorder,
            )
        # Before the weights are saved, which takes memory as well.
        memory = _peak_memory(training.device)
        if self._files is not None:
            is_finished = trained == training.subnets
            self._place.save(self.model.supernet, self._own_blocks, self._files, is_finished)
        return SessionResult(
            trained,
            [] if self._schedule is None else sorted(self._schedule.drained),
            {layer.key: layer.digest() for layer in self.model.own_layers()} if digest else {},
            [] if self._recorder is None else self._recorder.actions,
            memory,
        )

    @contextlib.contextmanager
    def _log(self) -> Iterator[JsonLines | None]:
        """Open the log, in the process that writes it, without the lines of subnets that are trained again."""
        if self._files is None or not self._place.logs:
            yield None
            return
        keep_lines(self._files.metrics, self.first)
        with JsonLines(self._files.metrics) as log:
            yield log

    def _end_subnet(self, log: JsonLines | None, record: SubnetRecord) -> None:
        if log is not None:
            log.append({**vars(record), "architecture": dict(record.architecture)})
        self._on_subnet(record)

    def _write_checkpoint(self, log: JsonLines | None, drain: Drain) -> None:
        assert self._checkpoints is not None, "the pipeline is drained for checkpoints only"
        place = self._place
        if log is not None:
            log.sync()
        self._checkpoints.write_shard(drain.subnet, place.stage or 0, self.model.own_layers())
        place.wait_for_others()
        if place.leads:
            keep = self._context.config.executor.checkpoint.keep
            self._checkpoints.finish(drain.subnet, place.processes, drain.sampler, keep)


def build_supernet(context: RunContext, own: range | None = None) -> Supernet:
    """Return a run's untrained supernet.

    Args:
        context: The run.
        own: The blocks that train in this process; where possible, the others are built without memory. None: all
            blocks.

    Raises:
        SpaceError: The blocks cannot be built.
    """
    config = context.config
    build = partial(
        Supernet, context.components.space, config.seed, freeze_always_active=config.training.freeze_always_active
    )
    # Under autocast, tensor specs come from running real blocks.
    if own is None or len(own) == len(context.meta_supernet) or config.training.precision != "fp32":
        return build()
    try:
        supernet = build(own=own)
    except SpaceError:
        # A space may compute with values of tensors while it is built; then all blocks need memory.
        return build()
    if any(parameter.is_meta for index in own for parameter in supernet.blocks[index].parameters()):
        # The same holds where the space builds a block before it yields the earlier blocks.
        return build()
    return supernet


def _reset_peak_memory(device: str) -> None:
    """Let ``_peak_memory`` count from now on, where the system allows it."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with contextlib.suppress(OSError):
        # Linux: set the peak of resident memory to its present value. Elsewhere the peak is that since the start.
        Path("/proc/self/clear_refs").write_text("5")


def _peak_memory(device: str) -> float:
    """Return the peak memory of this process, in MiB: resident memory, or on a GPU the memory of tensors."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().partition("VmHWM:")[2].split()[0]) / 2**10
    # macOS has no /proc, and gives bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
