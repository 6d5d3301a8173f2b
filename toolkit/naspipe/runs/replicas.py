"""Data-parallel retraining: a process for each part of a batch, all of them on this machine."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import distributed
from torch.distributed.distributed_c10d import PrefixStore

from naspipe.config.schema import RunConfig
from naspipe.environment import distributed_backends
from naspipe.errors import InputError, NaspipeWarning
from naspipe.files import JsonLines
from naspipe.runs.folder import RunFolder
from naspipe.runs.progress import Progress, Watch
from naspipe.runs.remains import SCRATCH, remove_mark, working_in
from naspipe.training.determinism import deterministic
from naspipe.training.launcher import end_with, find_store, launch, require_importable, watching_lines
from naspipe.training.share import Replica


class ReplicaTask(NamedTuple):
    """What the processes are told.

    Attributes:
        run: The run's folder.
        rows: Names of the rows that are not finished.
        progress: Where the first process says how far it is.
    """

    run: str
    rows: tuple[str, ...]
    progress: str


def check_replicas(config: RunConfig) -> None:
    """Refuse a data-parallel retraining that this machine or other processes cannot do.

    Raises:
        InputError: Torch lacks the backend, there are too few GPUs, or a plug-in is known to this process only.
    """
    processes, backend = config.retrain.processes, _backend(config)
    if backend not in distributed_backends():
        raise InputError(
            f"retrain.processes = {processes} needs torch's backend {backend}, but this build of torch has "
            f"{', '.join(distributed_backends()) or 'none'}. Set retrain.processes to 1."
        )
    gpus = torch.cuda.device_count() if backend == "nccl" else processes
    if processes > gpus:
        raise InputError(
            f"retrain.processes = {processes} needs a GPU for each process, but torch sees {gpus}. Set "
            f"retrain.processes to {max(1, gpus)} or fewer, or training.device to cpu."
        )
    require_importable(config, f"retrain.processes = {processes}", "set retrain.processes to 1")


def _backend(config: RunConfig) -> str:
    """Return what adds up gradients; the order of sums may depend on it, so nothing under ``executor`` decides."""
    return "nccl" if config.training.device == "cuda" else "gloo"


def retrain_in_processes(path: Path, rows: Sequence[str], processes: int, watch: Watch) -> None:
    """Do rows of a run's retraining with several processes.

    Args:
        path: The run's folder, which this process holds.
        rows: Names of the rows that are not finished.
        processes: How many.
        watch: Called with the progress.

    Raises:
        TrainingError: A process failed; all have been ended. Rows that were finished stay.
    """
    folder = RunFolder(path).retraining
    progress = folder / ".progress.jsonl"
    progress.unlink(missing_ok=True)

    def on_line(line: dict[str, Any]) -> None:
        watch(Progress(**line))

    task = ReplicaTask(str(path.resolve()), tuple(rows), str(progress.resolve()))
    try:
        with watching_lines(progress, on_line):
            launch(start_replica, task, processes, "replica", folder / SCRATCH)
        remove_mark(folder)
    finally:
        progress.unlink(missing_ok=True)


def start_replica(task: ReplicaTask, launcher: int) -> None:
    """Take part in a retraining; runs in a process that the elastic launcher has started.

    Args:
        task: What is to be done.
        launcher: Process id of the launcher, which this process does not outlive.
    """
    # Whoever opens a run may start these processes.
    from naspipe.runs.retraining import retrain_rows
    from naspipe.runs.run import Run

    end_with(launcher)
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    retraining = RunFolder(Path(task.run)).retraining
    with working_in(retraining), warnings.catch_warnings(), JsonLines(Path(task.progress)) as log:
        # What there is to warn of was said before the processes were started.
        warnings.simplefilter("ignore", NaspipeWarning)
        run = Run.open(task.run, lambda progress: log.append(vars(progress)))
        config = run.config
        if config.training.device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        store = PrefixStore("naspipe/retraining", find_store())
        with deterministic(config.training.threads, config.training.device):
            distributed.init_process_group(
                _backend(config), store=store, rank=rank, world_size=processes,
                timeout=timedelta(seconds=config.executor.timeout),
            )  # fmt: skip
            retrain_rows(run, task.rows, Replica(rank, processes, config.training.device, store))
            distributed.destroy_process_group()
