"""Processes of torch's elastic launcher on this machine: started, watched, and always ended."""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.distributed.rendezvous import rendezvous

from naspipe.errors import TrainingError
from naspipe.processes import interrupts_kept_here

POLL_SECONDS = 0.5
"""Seconds between two checks of the progress, and of whether the launcher is alive."""

LOST = "has ended or is out of reach"
"""Text in the error of a process that has lost another one; so the other one failed first."""

SHUTDOWN_SECONDS = 5
"""Seconds that the other processes have to end after a failure, before they are killed."""


def launch(entry: Callable[..., Any], task: object, processes: int, role: str, scratch: Path, restarts: int = 0) -> Any:
    """Start processes by torch's elastic launcher, and wait for all.

    Args:
        entry: The function that each process calls, with the task and the launcher's process id, which it passes to
            ``end_with``. Rank and number of processes are in the environment.
        task: The argument of the function; it is pickled.
        processes: Number of processes.
        role: Name of a process in errors: ``stage``.
        scratch: Folder of the launcher's files; removed before and afterwards, with its contents.
        restarts: Number of times that all processes are started again after one has failed.

    Returns:
        The result of the process of rank 0.

    Raises:
        TrainingError: A process failed; all have been ended.
    """
    # An interrupt reaches the main thread through the thread that watches the progress, which was started before.
    with _signals_kept(), _scratch(scratch), _quiet(), _none_left(), interrupts_kept_here():
        try:
            settings = _settings(processes, str(scratch), restarts)
            results: dict[int, Any] = elastic_launch(settings, entry)(task, os.getpid())
        except ChildFailedError as error:
            raise TrainingError(_explain(error, role)) from None
        except SignalException as error:
            # The launcher has ended the processes already.
            raise SystemExit(128 + error.sigval) from None
    return results[0]


def end_with(launcher: int) -> None:
    """End this process when the launcher has died, for whatever reason."""

    def look() -> None:
        while os.getppid() == launcher:
            time.sleep(POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=look, name="naspipe launcher", daemon=True).start()


def find_store() -> Store:
    """Return the store of the processes that were started together with this one.

    torch keeps its store when processes are started again; they use keys of their own.
    """
    store: Store = next(rendezvous("env://"))[0]
    return PrefixStore(f"naspipe/start{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


@contextlib.contextmanager
def watching_lines(path: Path, on_line: Callable[[Any], None]) -> Iterator[None]:
    """Call a function with each JSON line that a process appends to a file, from a thread of its own.

    Lines that exist before are skipped. If another file takes the place of the file, as when a training is resumed, the
    function is called with the last of its lines, and then with each line that is appended.
    """
    done = threading.Event()
    identity, place = None, 0
    if path.exists():
        identity, place = path.stat().st_ino, path.stat().st_size

    def look() -> None:
        nonlocal identity, place
        ended = False
        while not ended:
            ended = done.wait(POLL_SECONDS)
            if not path.exists():
                continue
            with path.open("rb") as file:
                found = os.fstat(file.fileno()).st_ino
                is_another = identity not in (None, found)
                if is_another:
                    place = 0
                identity = found
                file.seek(place)
                lines = [line for line in file if line.endswith(b"\n")]  # or it is still being written
                place += sum(map(len, lines))
                for line in lines[-1:] if is_another else lines:
                    on_line(json.loads(line))

    thread = threading.Thread(target=look, name="naspipe progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _settings(processes: int, scratch: str, restarts: int) -> LaunchConfig:
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=f"naspipe-{uuid.uuid4().hex}",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=restarts,
        monitor_interval=0.1,
        start_method="spawn",
        shutdown_timeout=SHUTDOWN_SECONDS,
        # Not SIGINT: an interrupt ends the launcher as it ends any Python program. Nor SIGTERM: the caller handles it.
        signals_to_handle="SIGHUP,SIGQUIT",
        logs_specs=DefaultLogsSpecs(log_dir=scratch),
    )


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore the signal handlers, which the launcher replaces."""
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
def _none_left() -> Iterator[None]:
    """Kill processes that the launcher has left running, as it does if it is interrupted a second time."""
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
def _scratch(folder: Path) -> Iterator[None]:
    """Make a folder for the launcher's files, and remove it afterwards.

    It is not in the system's temporary folder, where it would remain if the launcher were killed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    before = tempfile.tempdir
    # torch puts files of failed processes there, and does not remove them.
    tempfile.tempdir = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before
        shutil.rmtree(folder, ignore_errors=True)


def _explain(error: ChildFailedError, role: str) -> str:
    """Return which process failed first, how, and its message."""
    # torch's times are whole seconds, and late for a killed process. A process that has lost another failed later.
    failures = error.failures.items()
    rank, failure = min(failures, key=lambda item: (LOST in str(item[1].message), item[1].timestamp, item[0]))
    how = f"was ended by {failure.signal_name()}" if failure.exitcode < 0 else f"ended with code {failure.exitcode}"
    message = failure.message
    extra = ""
    if isinstance(message, dict):
        extra = f"\n{message.get('extraInfo', {}).get('py_callstack', '')}".rstrip()
        message = message.get("message", "")
    return f"the process of {role} {rank} (process id {failure.pid}) {how}: {message}{extra}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the launcher from logging the failure, which is raised as an error."""
    # Each module of the launcher has a logger with a level of its own.
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
