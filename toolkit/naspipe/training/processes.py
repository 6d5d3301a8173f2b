"""One process a stage: started by torch's elastic launcher, connected by torch.distributed."""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import signal
import tempfile
import threading
import uuid
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import torch
from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from naspipe import registry
from naspipe.config.schema import RunConfig
from naspipe.environment import distributed_backends, torchrun_processes
from naspipe.errors import InputError, TrainingError
from naspipe.runs.progress import Progress, Watch
from naspipe.training.stage import StageResult, StageTask, backend_of, join_parts, start_stage
from naspipe.training.torchrun import lead

POLL_SECONDS = 0.5
"""Between two looks at how far the stages are, for whoever watches."""

SHUTDOWN_SECONDS = 5
"""After a failure the other stages have this long to end before they are killed."""


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
            "Set executor.stages, or torchrun's --nproc-per-node."
        )
    for kind, name in (
        (registry.spaces, config.space.name),
        (registry.tasks, config.task.name),
        (registry.samplers, config.sampler.name),
        (registry.executors, config.executor.name),
    ):
        kind.require_elsewhere(name, "executor.transport 'distributed'", "set executor.transport to in-process")


def _check_backend(config: RunConfig) -> None:
    backend, stages = backend_of(config), config.executor.stages
    for needed in dict.fromkeys(("gloo", backend)):
        if needed not in distributed_backends():
            raise InputError(
                f"executor.transport 'distributed' needs torch's backend {needed}, but this build of torch has "
                f"{', '.join(distributed_backends()) or 'none'}. Set executor.transport to in-process."
            )
    if backend != "nccl":
        return
    if config.training.device != "cuda":
        raise InputError(
            "executor.backend 'nccl' moves tensors between GPUs, but training.device is 'cpu'. Set "
            "executor.backend=gloo, or training.device=cuda."
        )
    here = int(os.environ["LOCAL_WORLD_SIZE"]) if torchrun_processes() else stages
    there = torch.cuda.device_count()
    if here > there:
        raise InputError(
            f"executor.backend 'nccl' needs a GPU for each stage, but here are {here} stages and {there} "
            f"GPU{'' if there == 1 else 's'}. Set executor.stages to {there} or fewer; or executor.backend=gloo, by "
            "which stages may share a GPU; or executor.transport=in-process, which trains all stages on one."
        )


def train_in_processes(
    config: RunConfig, folder: Path, metrics: Path, supernet: Path, watch: Watch, record: bool = False
) -> list[StageResult]:
    """Train a run's supernet with one process for each stage.

    Args:
        config: The run's configuration.
        folder: Where the stages leave their layers until all have ended.
        metrics: Where the last stage logs each subnet.
        supernet: Where the whole supernet is saved.
        watch: Called with the progress.
        record: Record each action, and digest each layer.

    Returns:
        What each stage hands back.

    Raises:
        TrainingError: A stage failed; every process has been ended.
    """
    stages = config.executor.stages
    task = StageTask(config.to_yaml(), str(folder), str(metrics), record)
    with _watching(metrics, config.training.subnets, watch):
        results = lead(task) if torchrun_processes() else _launch(task, stages)
    join_parts(folder, stages, supernet)
    return results


def _launch(task: StageTask, stages: int) -> list[StageResult]:
    """Start a process for each stage by torch's elastic launcher, and wait for all."""
    with _signals_kept(), _scratch() as scratch, _quiet(), _none_left(), _interrupts_kept_from_stages():
        launch = _launch_config(stages, scratch)
        try:
            results: dict[int, list[StageResult]] = elastic_launch(launch, start_stage)(task, os.getpid())
        except ChildFailedError as error:
            raise TrainingError(_explain(error)) from None
        except SignalException as error:
            # The launcher has ended the stages already.
            raise SystemExit(128 + error.sigval) from None
    return results[0]


def _launch_config(stages: int, scratch: str) -> LaunchConfig:
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=stages,
        run_id=f"naspipe-{uuid.uuid4().hex}",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.1,
        start_method="spawn",
        shutdown_timeout=SHUTDOWN_SECONDS,
        # Not SIGINT: an interrupt ends the launcher as it ends any Python program.
        signals_to_handle="SIGTERM,SIGHUP,SIGQUIT",
        logs_specs=DefaultLogsSpecs(log_dir=scratch),
    )


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Give the handlers of signals back that the launcher replaces for good."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    before = {name: signal.getsignal(name) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


@contextlib.contextmanager
def _interrupts_kept_from_stages() -> Iterator[None]:
    """Start processes in which SIGINT is blocked.

    A terminal sends an interrupt to all of them; only the launcher is to act on it, and to end them. Its main thread
    hears of it by way of the thread that watches the progress, which was started before.
    """
    # Python starts this process with the first of the others, and unblocks SIGINT when it has.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _none_left() -> Iterator[None]:
    """Kill what the launcher has left running, as it does when it is interrupted again while it ends the stages."""
    before = set(multiprocessing.active_children())
    try:
        yield
    finally:
        left = [child for child in multiprocessing.active_children() if child not in before]
        for child in left:
            child.kill()
        for child in left:
            child.join()


@contextlib.contextmanager
def _scratch() -> Iterator[str]:
    """Make a folder for what the launcher writes, and take it away with all that it leaves."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="naspipe-") as folder:
        # Where torch puts the files of failed processes, which it forgets.
        tempfile.tempdir = folder
        try:
            yield folder
        finally:
            tempfile.tempdir = before


def _explain(error: ChildFailedError) -> str:
    """Return which stage failed first, how, and what it said."""
    rank, failure = error.get_first_failure()
    how = f"was ended by {failure.signal_name()}" if failure.exitcode < 0 else f"ended with code {failure.exitcode}"
    message = failure.message
    extra = ""
    if isinstance(message, dict):
        extra = f"\n{message.get('extraInfo', {}).get('py_callstack', '')}".rstrip()
        message = message.get("message", "")
    return f"the process of stage {rank} (process id {failure.pid}) {how}: {message}{extra}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the launcher from logging the failure that is raised as an error anyway."""
    # Each of its modules has a logger with a level of its own.
    packages = ("torch.distributed.elastic", "torch.multiprocessing")
    loggers = [logging.getLogger(name) for name in list(logging.root.manager.loggerDict) if name.startswith(packages)]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def _watching(metrics: Path, total: int, watch: Watch) -> Iterator[None]:
    """Report how many subnets the last stage has logged, from a thread of its own."""
    done = threading.Event()

    def look() -> None:
        seen = place = 0
        ended = False
        while not ended:
            ended = done.wait(POLL_SECONDS)
            if not metrics.exists():
                continue
            with metrics.open("rb") as file:
                file.seek(place)
                for line in file:
                    if line.endswith(b"\n"):  # or it is still being written
                        seen, place = seen + 1, place + len(line)
                        loss = json.loads(line)["loss"]
                        detail = "loss not finite" if loss is None else f"loss {loss:.4f}"
                        watch(Progress("train", seen, total, detail))

    thread = threading.Thread(target=look, name="naspipe progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
