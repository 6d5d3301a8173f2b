"""The training phase of a run: all stages in this process, or one process a stage."""

from __future__ import annotations

from naspipe.components import build_components
from naspipe.config.schema import RunConfig
from naspipe.files import JsonLines, save_tensors, writing
from naspipe.pipeline.planfile import write_plan
from naspipe.planning import PROFILE, prepare_planning
from naspipe.runs.folder import RunFolder
from naspipe.runs.progress import Progress, Watch
from naspipe.supernet.supernet import Supernet
from naspipe.tasks.data import Splits
from naspipe.training.loop import SubnetRecord
from naspipe.training.profiling import settle_costs
from naspipe.training.recorder import Recorder, Row, trace_of
from naspipe.training.setup import prepare_trainer


def train_supernet(
    config: RunConfig, folder: RunFolder, splits: Splits, watch: Watch, untrained: Supernet | None, trace: bool
) -> None:
    """Train a run's supernet and save it.

    Args:
        config: The run's configuration.
        folder: Its folder.
        splits: Its data.
        watch: Called with the progress.
        untrained: A supernet to train in place, or None: a new one is built.
        trace: Record what each stage did, when, and the versions it saw.

    Raises:
        TrainingError: It cannot go on.
        RunError: A file cannot be written.
    """
    if config.executor.costs == PROFILE:
        watch(Progress("train", 0, config.training.subnets, "measuring what blocks take"))
        config = settle_costs(config, splits, folder.costs)
    if config.executor.transport == "distributed":
        del untrained  # The processes build their own.
        rows = _train_in_processes(config, folder, watch, trace)
    else:
        rows = _train_here(config, folder, splits, watch, untrained, trace)
    if trace:
        plan = prepare_planning(config, build_components(config), splits).plan()
        write_plan(plan, folder.plan)
        write_plan(trace_of(plan, rows), folder.trace)


def _train_here(
    config: RunConfig, folder: RunFolder, splits: Splits, watch: Watch, untrained: Supernet | None, trace: bool
) -> list[Row]:
    """Train with all stages in this process; return what was recorded."""
    prepared = prepare_trainer(config, build_components(config), splits, untrained)
    with JsonLines(folder.training_metrics) as log:

        def on_subnet(record: SubnetRecord) -> None:
            log.append({**vars(record), "architecture": dict(record.architecture)})
            detail = "loss not finite" if record.loss is None else f"loss {record.loss:.4f}"
            watch(Progress("train", record.index + 1, config.training.subnets, detail))

        recorder = Recorder(config.training.device) if trace else None
        prepared.trainer.run(on_subnet, recorder)
    save_tensors(folder.supernet, prepared.supernet.blocks.state_dict(), {"format": "pt"})
    return recorder.rows if recorder else []


def _train_in_processes(config: RunConfig, folder: RunFolder, watch: Watch, trace: bool) -> list[Row]:
    """Train with a process for each stage; return what was recorded."""
    # The launcher is imported only where it is used.
    from naspipe.training.processes import train_in_processes

    metrics = folder.training_metrics
    with writing(metrics):
        metrics.parent.mkdir(exist_ok=True)
    results = train_in_processes(config, metrics.parent, metrics, folder.supernet, watch, record=trace)
    return [row for result in results for row in result.rows]
