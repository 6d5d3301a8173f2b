"""Retraining in several data-parallel processes on this machine."""

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

from naspipe.errors import NaspipeWarning
from naspipe.files import JsonLines
from naspipe.results.folder import RunFolder
from naspipe.results.view import RunView
from naspipe.runs.retrain_rows import retrain_rows
from naspipe.supernet.determinism import deterministic
from naspipe.training.distributed.data_parallel import DataParallelProcess
from naspipe.training.distributed.launcher import end_with, find_store, launch, watching_lines
from naspipe.training.distributed.leftovers import SCRATCH, remove_mark, working_in
from naspipe.training.distributed.requirements import retrain_backend
from naspipe.training.progress import Progress, Watch


class ReplicaTask(NamedTuple):
    """The task of the processes.

    Attributes:
        run: The run's folder.
        rows: Names of the rows that are not finished.
        progress: File of the leading process's progress.
    """

    run: str
    rows: tuple[str, ...]
    progress: str


def retrain_in_processes(path: Path, rows: Sequence[str], processes: int, watch: Watch) -> None:
    """Train rows of a run's table with several processes.

    Args:
        path: The run's folder, whose lock this process holds.
        rows: Names of the rows that are not finished.
        processes: Number of processes.
        watch: Called with the progress.

    Raises:
        TrainingError: A process failed; all have been ended. Finished rows are kept.
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
    """Take part in a retraining; called in a process that the elastic launcher has started.

    Args:
        task: The task.
        launcher: Process id of the launcher; this process ends when the launcher does.
    """
    end_with(launcher)
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    retraining = RunFolder(Path(task.run)).retraining
    with working_in(retraining), warnings.catch_warnings(), JsonLines(Path(task.progress)) as log:
        # All warnings were shown before the processes were started.
        warnings.simplefilter("ignore", NaspipeWarning)
        view = RunView.open(task.run)
        config = view.config
        if config.training.device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        store = PrefixStore("naspipe/retraining", find_store())
        with deterministic(config.training.threads, config.training.device):
            distributed.init_process_group(
                retrain_backend(config), store=store, rank=rank, world_size=processes,
                timeout=timedelta(seconds=config.executor.timeout),
            )  # fmt: skip
            process = DataParallelProcess(rank, processes, config.training.device, store)
            retrain_rows(view, task.rows, process, lambda progress: log.append(vars(progress)))
            distributed.destroy_process_group()
