"""One process a stage: started by torch's elastic launcher, connected by torch.distributed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Iterator
from datetime import timedelta
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import distributed
from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from naspipe import registry
from naspipe.config.schema import RunConfig
from naspipe.environment import describe_environment, distributed_backends
from naspipe.errors import InputError, NaspipeWarning, TrainingError
from naspipe.files import JsonLines, load_tensors, save_tensors
from naspipe.runs.progress import Progress, Watch
from naspipe.training.recorder import Recorder, Row

if TYPE_CHECKING:
    from naspipe.training.loop import SubnetRecord

POLL_SECONDS = 0.5
"""Between two looks at how far the stages are, for whoever watches."""

SHUTDOWN_SECONDS = 5
"""After a failure the other stages have this long to end before they are killed."""


def check_processes(config: RunConfig) -> None:
    """Refuse what this machine or other processes cannot do.

    Raises:
        InputError: A plug-in is defined in an interactive session or was registered in this process only; the
            device is a GPU; or torch lacks the backend.
    """
    if "gloo" not in distributed_backends():
        raise InputError(
            "executor.transport 'distributed' needs torch's backend gloo, but this build of torch has "
            f"{', '.join(distributed_backends()) or 'none'}. Set executor.transport to in-process."
        )
    if config.training.device == "cuda":
        # NCCL's point-to-point calls run in order for each pair, whatever their tags: receives cannot be posted ahead.
        raise InputError(
            "executor.transport 'distributed' runs on CPUs so far, but training.device is 'cuda'. Set "
            "executor.transport to in-process, which trains all stages on one GPU."
        )
    for kind, name in (
        (registry.spaces, config.space.name),
        (registry.tasks, config.task.name),
        (registry.samplers, config.sampler.name),
        (registry.executors, config.executor.name),
    ):
        cls = kind.get(name)
        if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__ or kind.is_local(name):
            raise InputError(
                f"executor.transport 'distributed' starts a process for each stage, but {kind.kind} {name!r} is known "
                f"to this process only ({cls.__module__}.{cls.__qualname__}). Put its class into a file or a package "
                "and name it as file.py:Class or package.module:Class, or set executor.transport to in-process."
            )


class StageResult(NamedTuple):
    """What the process of a stage hands back.

    Attributes:
        digests: Digest of each of its layers; empty unless it was asked to record.
        rows: What its recorder collected.
        peak_memory: Its peak memory, in MiB.
    """

    digests: dict[str, str]
    rows: list[Row]
    peak_memory: float


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
    with (
        _signals_kept(), _scratch() as scratch, _watching(metrics, config.training.subnets, watch), _quiet(),
        _none_left(), _interrupts_kept_from_stages(),
    ):  # fmt: skip
        launch = _launch_config(stages, scratch)
        try:
            arguments = (config.to_yaml(), str(folder), str(metrics), record, os.getpid())
            results = elastic_launch(launch, train_stage)(*arguments)
        except ChildFailedError as error:
            raise TrainingError(_explain(error)) from None
        except SignalException as error:
            # The launcher has ended the stages already.
            raise SystemExit(128 + error.sigval) from None
    parts = [_part_file(folder, stage) for stage in range(stages)]
    tensors: dict[str, torch.Tensor] = {}
    for part in parts:
        tensors.update(load_tensors(part))
    save_tensors(supernet, tensors, {"format": "pt"})
    for part in parts:
        part.unlink()
    return [results[stage] for stage in range(stages)]


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


def _part_file(folder: Path, stage: int) -> Path:
    return folder / f"stage{stage}.safetensors"


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


def train_stage(config_yaml: str, folder: str, metrics: str, record: bool, launcher: int) -> StageResult:
    """Train one stage; runs in a process that the elastic launcher has started.

    Args:
        config_yaml: The run's resolved configuration.
        folder: Where to leave the stage's layers.
        metrics: Where the last stage logs each subnet.
        record: Record each action, and digest each layer.
        launcher: Process id of the launcher, which this process does not outlive.

    Raises:
        TrainingError: A block failed, a message did not come, or the processes differ.
    """
    from naspipe.components import build_components
    from naspipe.config.resolve import resolve
    from naspipe.config.source import read_text
    from naspipe.training.determinism import deterministic
    from naspipe.training.setup import layer_digests, peak_memory, prepare_trainer, reset_peak_memory
    from naspipe.training.transport import Distributed

    # What there is to warn of was said before the processes were started.
    warnings.simplefilter("ignore", NaspipeWarning)
    _end_with(launcher)
    config = resolve(read_text(config_yaml, "the run's configuration", Path.cwd()))
    stage, stages = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with deterministic(config.training.threads, config.training.device):
        distributed.init_process_group("gloo", timeout=timedelta(seconds=config.executor.timeout))
        _compare_processes(config)
        components = build_components(config)
        splits = components.task.load(config.seed)
        reset_peak_memory(config.training.device)
        prepared = prepare_trainer(
            config, components, splits, stage=stage,
            connect=lambda signature: Distributed(
                stage, config.executor.segments, signature, config.executor.timeout
            ),
        )  # fmt: skip
        trainer, cuts = prepared.trainer, prepared.cuts
        with JsonLines(Path(metrics)) if stage == stages - 1 else contextlib.nullcontext() as log:

            def on_subnet(record: SubnetRecord) -> None:
                assert log is not None
                log.append({**vars(record), "architecture": dict(record.architecture)})

            recorder = Recorder(config.training.device) if record else None
            trainer.run(on_subnet, recorder)
        segments = config.executor.segments
        own = range(cuts[stage * segments], cuts[(stage + 1) * segments])
        weights = prepared.supernet.blocks.state_dict()
        tensors = {name: tensor for name, tensor in weights.items() if int(name.partition(".")[0]) in own}
        save_tensors(_part_file(Path(folder), stage), tensors, {"format": "pt"})
        distributed.barrier()
        distributed.destroy_process_group()
        return StageResult(
            layer_digests(trainer) if record else {},
            recorder.rows if recorder else [],
            peak_memory(config.training.device),
        )


def _end_with(launcher: int) -> None:
    """End this process when the launcher has died, however and whenever that happened."""

    def look() -> None:
        while os.getppid() == launcher:
            time.sleep(POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=look, name="naspipe launcher", daemon=True).start()


def _compare_processes(config: RunConfig) -> None:
    """Make sure that all processes compute alike.

    Raises:
        TrainingError: One differs in configuration, versions, or kind of processor; it says which and how.
    """
    environment = describe_environment(config.seed, config.training.threads)
    own: dict[str, Any] = {
        "configuration": hashlib.sha256(config.to_yaml().encode()).hexdigest(),
        "packages": environment["packages"],
        "CPU capability": environment["cpu"]["capability"],
    }
    everyone: list[dict[str, Any]] = [{} for _ in range(distributed.get_world_size())]
    distributed.all_gather_object(everyone, own)
    for rank, other in enumerate(everyone):
        for key, value in everyone[0].items():
            if other[key] != value:
                raise TrainingError(
                    f"all processes must be alike, but {key} of stage {rank} is {other[key]!r}, and of stage 0 "
                    f"{value!r}."
                )
