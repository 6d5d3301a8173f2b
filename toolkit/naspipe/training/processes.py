"""One process a stage: started by torch's elastic launcher, connected by torch.distributed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from naspipe.config.schema import RunConfig
from naspipe.environment import distributed_backends, torchrun_processes
from naspipe.errors import InputError
from naspipe.runs.progress import Progress, Watch
from naspipe.runs.remains import SCRATCH, remove_mark
from naspipe.training.devices import backend_of, require_gpus
from naspipe.training.launcher import launch, require_importable, watching_lines
from naspipe.training.parts import join_parts
from naspipe.training.stage import StageResult, StageTask, start_stage
from naspipe.training.torchrun import lead


def check_processes(config: RunConfig) -> None:
    """Refuse what this machine or other processes cannot do.

    Raises:
        InputError: A plug-in is defined in an interactive session or was registered in this process only; torch
            lacks the backend; there are too few GPUs; or torchrun started another number of processes.
    """
    _check_backend(config)
    started = torchrun_processes()
    if started not in (0, config.executor.stages):
        raise InputError(
            f"torchrun must start a process for each of the {config.executor.stages} stages, but started {started}. "
            "Set executor.stages, or torchrun's --nnodes and --nproc-per-node."
        )
    require_importable(config, "executor.transport 'distributed'", "set executor.transport to in-process")


def _check_backend(config: RunConfig) -> None:
    backend, stages = backend_of(config), config.executor.stages
    for needed in dict.fromkeys(("gloo", backend)):
        if needed not in distributed_backends():
            raise InputError(
                f"executor.transport 'distributed' needs torch's backend {needed}, but this build of torch has "
                f"{', '.join(distributed_backends()) or 'none'}. Set executor.transport to in-process."
            )
    if backend == "nccl" and config.training.device != "cuda":
        raise InputError(
            "executor.backend 'nccl' moves tensors between GPUs, but training.device is 'cpu'. Set "
            "executor.backend=gloo, or training.device=cuda."
        )
    # On other machines each process looks for itself before it trains.
    require_gpus(config, int(os.environ["LOCAL_WORLD_SIZE"]) if torchrun_processes() else stages)


def train_in_processes(
    config: RunConfig,
    folder: Path,
    metrics: Path,
    supernet: Path,
    watch: Watch,
    record: bool = False,
    checkpoints: Path | None = None,
    stop: Path | None = None,
) -> list[StageResult]:
    """Train a run's supernet with one process for each stage.

    Args:
        config: The run's configuration.
        folder: Where the stages leave their layers until all have ended.
        metrics: Where the last stage logs each subnet.
        supernet: Where the whole supernet is saved.
        watch: Called with the progress.
        record: Record each action, and digest each layer.
        checkpoints: Where checkpoints are, from which training goes on, or None: there are to be none.
        stop: A file that is made when the training is to stop, or None.

    Returns:
        What each stage hands back. If the training was stopped, no supernet is saved.

    Raises:
        TrainingError: A stage failed; every process has been ended.
    """
    stages = config.executor.stages
    # Absolute: other processes may have been started elsewhere.
    places = ["" if path is None else str(path.absolute()) for path in (checkpoints, stop)]
    task = StageTask(config.to_yaml(), str(folder.absolute()), str(metrics.absolute()), record, *places)

    def on_subnet(line: dict[str, Any]) -> None:
        detail = "loss not finite" if line["loss"] is None else f"loss {line['loss']:.4f}"
        watch(Progress("train", line["index"] + 1, config.training.subnets, detail))

    results: list[StageResult]
    with watching_lines(metrics, on_subnet):
        if torchrun_processes():
            results = lead(task)
        else:
            results = launch(start_stage, task, stages, "stage", folder / SCRATCH, config.executor.restarts)
    remove_mark(folder)
    join_parts(folder, stages, supernet if results[0].trained == config.training.subnets else None)
    return results
