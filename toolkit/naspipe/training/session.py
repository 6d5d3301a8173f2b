"""A training session: a supernet's training in this process, from its preparation to what it leaves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from naspipe.errors import SpaceError
from naspipe.files import JsonLines, keep_lines, save_tensors
from naspipe.pipeline.drain import never_drain
from naspipe.pipeline.parts import PipelineParts
from naspipe.supernet.determinism import deterministic
from naspipe.supernet.supernet import Supernet
from naspipe.training.checkpoint import Checkpoint, CheckpointFolder
from naspipe.training.context import RunContext
from naspipe.training.drain_schedule import DrainSchedule
from naspipe.training.feed import SubnetFeed
from naspipe.training.files import TrainingFiles
from naspipe.training.memory import peak_memory, reset_peak_memory
from naspipe.training.plan_walk import PlanWalk
from naspipe.training.progress import Progress, Watch, ignore
from naspipe.training.recorder import RecordedAction, Recorder
from naspipe.training.stage_model import StageModel
from naspipe.training.subnet_stream import SubnetStream
from naspipe.training.trainer import SupernetTrainer
from naspipe.training.transport import InProcess, Transport

if TYPE_CHECKING:
    from naspipe.pipeline.action import PlannedAction
    from naspipe.training.events import Drain, SubnetRecord
    from naspipe.training.tensor_spec import PayloadSpec


class SessionResult(NamedTuple):
    """What a session leaves beside its files.

    Attributes:
        trained: Number of subnets that have been trained, those of earlier sessions included.
        drained: The subnets before which the pipeline was drained.
        digests: Digest of each layer in this process; empty unless the session was recorded.
        actions: The actions of this process with times and versions; empty unless the session was recorded.
        peak_memory: Peak memory of this process, in MiB.
    """

    trained: int
    drained: list[int]
    digests: dict[str, str]
    actions: list[RecordedAction]
    peak_memory: float


class AllStages:
    """The place of a session that has all stages in this process; a subclass has one stage of several processes.

    Attributes:
        stage: The stage that is in this process, or None: all are.
        leads: Whether this process completes checkpoints and decides when the pipeline is drained.
        logs: Whether the last stage is in this process, which knows the losses.
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
        """Return the checkpoint that the training resumes from, the same in all processes; None: it begins."""
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
            own: The blocks that were trained here.
            files: Where to save.
            is_finished: Whether all subnets have been trained.
        """
        if is_finished:
            save_tensors(files.supernet, supernet.blocks.state_dict(), {"format": "pt"})


class TrainingSession:
    """Prepares, runs, checkpoints, logs and finishes a supernet's training in this process.

    Runs, stages' processes, profiling and verification all train through it.
    """

    def __init__(
        self,
        context: RunContext,
        files: TrainingFiles | None = None,
        place: AllStages | None = None,
        *,
        watch: Watch = ignore,
        record: bool = False,
        must_stop: Callable[[], bool] = lambda: False,
        supernet: Supernet | None = None,
    ) -> None:
        """Plan nothing and build nothing yet.

        Args:
            context: The run.
            files: Where log, checkpoints and weights go; a training that has checkpoints there is resumed. None:
                nothing is kept.
            place: Which stages are in this process; by default all.
            watch: Called with the progress, in the process that logs.
            record: Record what each action took and saw, and digest each layer at the end.
            must_stop: Tells whether the training is asked to stop.
            supernet: Untrained, to be trained in place; by default a new one is built.
        """
        self._context = context
        self._files = files
        self._place = place or AllStages()
        self._watch = watch
        self._record = record
        self._must_stop = must_stop
        self._supernet = supernet

    def run(self) -> SessionResult:
        """Train.

        Raises:
            InputError: The layout does not fit.
            TrainingError: The training cannot go on.
            RunFolderError: The log is shorter than the checkpoint says.
            RunError: A file cannot be written.
        """
        training = self._context.config.training
        with deterministic(training.threads, training.device):
            return self._run()

    def _run(self) -> SessionResult:
        context, place, files = self._context, self._place, self._files
        config, planning = context.config, context.planning
        reset_peak_memory(config.training.device)
        checkpoints = None if files is None else CheckpointFolder(files.checkpoints)
        checkpoint = None if checkpoints is None else place.find_checkpoint(checkpoints)
        first, state = (0, None) if checkpoint is None else (checkpoint.subnet, checkpoint.sampler)
        schedule = None if files is None else place.schedule_drains(context, self._must_stop)
        is_drained = (lambda subnet: False) if schedule is None else schedule.is_drained
        parts = PipelineParts(config.executor.stages, config.executor.segments)
        own_parts = None if place.stage is None else parts.of_stage(place.stage)
        cuts = planning.cuts
        own = range(cuts[0], cuts[-1]) if place.stage is None else parts.blocks_of_stage(place.stage, cuts)
        stream = SubnetStream(planning, first, state, is_drained)
        feed = SubnetFeed(stream, context.components.task, context.splits.train, config.training, config.seed)
        planner = planning.planner(first, stream.shapes(), schedule or never_drain)
        supernet, self._supernet = self._supernet or build_supernet(context, own), None
        model = StageModel(
            supernet,
            cuts,
            config.training,
            config.seed,
            own_parts=own_parts,
            meta=context.meta_supernet,
            recompute=config.executor.recompute,
        )
        trainer = SupernetTrainer(
            model, feed, PlanWalk(planner, stream, feed, first, is_drained), parts, config.training
        )
        if checkpoint is not None:
            checkpoint.restore(model.own_layers())
        recorder = Recorder(config.training.device) if self._record else None
        with self._log(first) as log:
            trained = trainer.run(
                place.connect(trainer.result_spec, context),
                context.components.task.loss,
                partial(self._end_subnet, log),
                partial(self._write_checkpoint, log, checkpoints, model),
                recorder,
            )
        if files is not None:
            place.save(supernet, own, files, trained == config.training.subnets)
        return SessionResult(
            trained,
            [] if schedule is None else sorted(schedule.drained),
            {layer.key: layer.digest() for layer in model.own_layers()} if self._record else {},
            recorder.actions if recorder else [],
            peak_memory(config.training.device),
        )

    @contextlib.contextmanager
    def _log(self, first: int) -> Iterator[JsonLines | None]:
        """Open the log of subnets, in the process that writes it; subnets that are trained again are logged again."""
        if self._files is None or not self._place.logs:
            yield None
            return
        keep_lines(self._files.metrics, first)
        with JsonLines(self._files.metrics) as log:
            yield log

    def _end_subnet(self, log: JsonLines | None, record: SubnetRecord) -> None:
        if log is not None:
            log.append({**vars(record), "architecture": dict(record.architecture)})
        subnets = self._context.config.training.subnets
        self._watch(Progress.of_subnet(record.index, record.loss, subnets))

    def _write_checkpoint(
        self, log: JsonLines | None, checkpoints: CheckpointFolder | None, model: StageModel, drain: Drain
    ) -> None:
        assert checkpoints is not None, "the pipeline is drained for checkpoints only"
        place = self._place
        if log is not None:
            log.sync()
        checkpoints.write_shard(drain.subnet, place.stage or 0, model.own_layers())
        place.wait_for_others()
        if place.leads:
            keep = self._context.config.executor.checkpoint.keep
            checkpoints.finish(drain.subnet, place.processes, drain.sampler, keep)


def build_supernet(context: RunContext, own: range | None = None) -> Supernet:
    """Return a run's untrained supernet.

    Args:
        context: The run.
        own: The blocks that train in this process; the others are built without memory where that is possible. None:
            all blocks.

    Raises:
        SpaceError: The blocks cannot be built.
    """
    config = context.config
    build = partial(
        Supernet, context.components.space, config.seed, freeze_always_active=config.training.freeze_always_active
    )
    # Under autocast, real blocks must tell the specs of what they return.
    if own is None or len(own) == len(context.meta_supernet) or config.training.precision != "fp32":
        return build()
    try:
        supernet = build(own=own)
    except SpaceError:
        # A space may compute with the values of tensors while it is built; then all blocks need memory.
        return build()
    if any(parameter.is_meta for index in own for parameter in supernet.blocks[index].parameters()):
        # So they do where the space builds a block before it yields the earlier ones.
        return build()
    return supernet
