"""The training phase of a run: all stages in this process, or one process a stage."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from naspipe.components import build_components, contract_of
from naspipe.config.schema import RunConfig
from naspipe.errors import RunFolderError, StoppedError
from naspipe.files import JsonLines, keep_lines, save_tensors, writing
from naspipe.pipeline.gate import drained_at
from naspipe.pipeline.planfile import write_plan
from naspipe.planning import PROFILE, prepare_planning
from naspipe.runs.folder import RunFolder
from naspipe.runs.progress import Progress, Watch
from naspipe.runs.settling import settle_training
from naspipe.runs.stopping import StopRequest
from naspipe.supernet.supernet import Supernet
from naspipe.tasks.data import Splits
from naspipe.training.checkpoint import CheckpointFolder
from naspipe.training.events import Cut, SubnetRecord
from naspipe.training.gatekeeper import Gatekeeper
from naspipe.training.parts import remove_parts
from naspipe.training.profiling import settle_costs
from naspipe.training.recorder import Recorder, Row, trace_of
from naspipe.training.setup import prepare_trainer


def train_supernet(
    config: RunConfig, folder: RunFolder, splits: Splits, watch: Watch, untrained: Supernet | None, trace: bool
) -> None:
    """Train a run's supernet and save it; go on from its last checkpoint, if there is one.

    Args:
        config: The run's configuration.
        folder: Its folder.
        splits: Its data.
        watch: Called with the progress.
        untrained: A supernet to train in place, or None: a new one is built.
        trace: Record what each stage did, when, and the versions it saw; from the first subnet on, or not at all.

    Raises:
        RunFolderError: What it depends on has changed since it began.
        TrainingError: It cannot go on.
        StoppedError: SIGTERM came; a checkpoint has been written.
        RunError: A file cannot be written.
    """
    settle_training(config, folder)
    if config.executor.costs == PROFILE:
        watch(Progress("train", 0, config.training.subnets, "measuring what blocks take"))
        config = settle_costs(config, splits, folder.costs)
    with writing(folder.training_metrics):
        folder.training_metrics.parent.mkdir(exist_ok=True)
    stop = StopRequest(folder.stop_request)
    # Without checkpoints there is nothing to wait for.
    with contextlib.nullcontext() if _is_stale(config) else stop.heard():
        if config.executor.transport == "distributed":
            del untrained  # The processes build their own.
            result = _train_in_processes(config, folder, watch, trace)
        else:
            result = _train_here(config, folder, splits, watch, untrained, trace, stop)
    stopped = StoppedError(
        f"stopped by SIGTERM after {result.trained:,} of {config.training.subnets:,} subnets. {folder.how_to_go_on}"
    )
    if result.trained < config.training.subnets:
        raise stopped
    finish_training(folder)
    if trace:
        plan = prepare_planning(config, build_components(config), splits).plan(gate=drained_at(result.cuts))
        write_plan(plan, folder.plan)
        write_plan(trace_of(plan, result.rows), folder.trace)
    if stop.came:
        raise stopped


def finish_training(folder: RunFolder) -> None:
    """Remove what a training goes on from, once the supernet has been saved."""
    CheckpointFolder(folder.checkpoints).remove_all()
    remove_parts(folder.supernet.parent)


def how_to_go_on(config: RunConfig, folder: RunFolder) -> str:
    """Return what to do about a training that was broken off."""
    if _is_stale(config):
        return f"Executor {config.executor.name!r} writes no checkpoints. To train anew: {folder.retry}"
    return folder.how_to_go_on


def refuse_stale(config: RunConfig, folder: RunFolder) -> None:
    """Raise an error if a training that was broken off cannot be gone on with exactly.

    Raises:
        RunFolderError: Its executor keeps a contract under which none can.
    """
    if folder.training_metrics.exists() and _is_stale(config):
        contract = contract_of(config, build_components(config).executor)
        raise RunFolderError(
            f"executor {config.executor.name!r} keeps the contract {contract}: subnets read weights that are being "
            "changed meanwhile, so no moment of its training is one that it could go on from exactly, and it writes no "
            f"checkpoints. Train anew: `{folder.retry}`."
        )


def _is_stale(config: RunConfig) -> bool:
    return contract_of(config, build_components(config).executor).kind == "stale"


class _Result(NamedTuple):
    """What came of a training: subnets trained, where the plan was cut, and what was recorded."""

    trained: int
    cuts: list[int]
    rows: list[Row]


def _train_here(
    config: RunConfig,
    folder: RunFolder,
    splits: Splits,
    watch: Watch,
    untrained: Supernet | None,
    trace: bool,
    stop: StopRequest,
) -> _Result:
    """Train with all stages in this process."""
    components = build_components(config)
    checkpoints = CheckpointFolder(folder.checkpoints)
    checkpoint = checkpoints.start()
    keep_lines(folder.training_metrics, checkpoint.subnet if checkpoint is not None else 0)
    contract = contract_of(config, components.executor)
    gatekeeper = Gatekeeper(config.executor.checkpoint, contract, stop.is_made)
    prepared = prepare_trainer(config, components, splits, untrained, checkpoint=checkpoint, gatekeeper=gatekeeper)
    with JsonLines(folder.training_metrics) as log:

        def on_subnet(record: SubnetRecord) -> None:
            log.append({**vars(record), "architecture": dict(record.architecture)})
            detail = "loss not finite" if record.loss is None else f"loss {record.loss:.4f}"
            watch(Progress("train", record.index + 1, config.training.subnets, detail))

        def on_cut(cut: Cut) -> None:
            log.sync()
            checkpoints.write_part(cut.subnet, 0, prepared.trainer.own_layers())
            checkpoints.finish(cut.subnet, 1, cut.sampler, config.executor.checkpoint.keep)

        recorder = Recorder(config.training.device) if trace else None
        trained = prepared.trainer.run(on_subnet, recorder, on_cut)
    if trained == config.training.subnets:
        save_tensors(folder.supernet, prepared.supernet.blocks.state_dict(), {"format": "pt"})
    return _Result(trained, sorted(gatekeeper.cuts), recorder.rows if recorder else [])


def _train_in_processes(config: RunConfig, folder: RunFolder, watch: Watch, trace: bool) -> _Result:
    """Train with a process for each stage."""
    # The launcher is imported only where it is used.
    from naspipe.training.processes import train_in_processes

    metrics = folder.training_metrics
    results = train_in_processes(
        config, metrics.parent, metrics, folder.supernet, watch, trace, folder.checkpoints, folder.stop_request
    )
    rows = [row for result in results for row in result.rows]
    return _Result(results[0].trained, results[0].cuts, rows)
