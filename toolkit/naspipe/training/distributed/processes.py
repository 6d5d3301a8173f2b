"""Supernet training with one process for each stage, started by torch's elastic launcher or by torchrun."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from naspipe.environment import torchrun_processes
from naspipe.files import load_tensors, save_tensors
from naspipe.training.context import RunContext
from naspipe.training.distributed.launcher import launch, watching_lines
from naspipe.training.distributed.leftovers import SCRATCH, remove_mark
from naspipe.training.distributed.stage import StageTask, start_stage
from naspipe.training.distributed.torchrun import lead
from naspipe.training.files import TrainingFiles
from naspipe.training.progress import Progress, Watch
from naspipe.training.session import SessionResult

if TYPE_CHECKING:
    from torch import Tensor


def train_in_processes(context: RunContext, files: TrainingFiles, watch: Watch, record: bool) -> list[SessionResult]:
    """Train a run's supernet with one process for each stage.

    Args:
        context: The run; the processes get its costs.
        files: Files of log, checkpoints and weights.
        watch: Called with the progress.
        record: Whether to record each action and digest each layer.

    Returns:
        The results of all stages. If the training was stopped, no supernet is saved.

    Raises:
        TrainingError: A stage failed; every process has been ended.
    """
    config = context.config
    stages = config.executor.stages
    # Absolute: other processes may have been started elsewhere.
    task = StageTask(config.to_yaml(), context.costs.model_dump_json(), str(files.root.absolute()), record)

    def on_subnet(line: dict[str, Any]) -> None:
        watch(Progress.of_subnet(line["index"], line["loss"], config.training.subnets))

    results: list[SessionResult]
    with watching_lines(files.metrics, on_subnet):
        if torchrun_processes():
            results = lead(task)
        else:
            results = launch(start_stage, task, stages, "stage", files.root / SCRATCH, config.executor.restarts)
    remove_mark(files.root)
    if results[0].trained == config.training.subnets:
        tensors: dict[str, Tensor] = {}
        for stage in range(stages):
            tensors.update(load_tensors(files.stage(stage)))
        save_tensors(files.supernet, tensors, {"format": "pt"})
    files.remove_stages()
    return results
