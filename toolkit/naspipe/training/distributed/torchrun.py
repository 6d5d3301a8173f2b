"""Processes that torchrun has started: rank 0 leads the run, and the others train their stages.

torchrun starts one command in every process, on one machine or several. The leader makes the folder, checks everything
and later searches. Through the store of torchrun's processes it orders trainings, and tells when its command has ended.
The others stay until then: if torchrun ended on one machine, the processes of other machines might lose the store.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed import DistError
from torch.distributed.distributed_c10d import PrefixStore, Store

from naspipe.errors import NaspipeError, TrainingError
from naspipe.training.distributed.agreement import token_in
from naspipe.training.distributed.launcher import end_with, find_store
from naspipe.training.distributed.stage import STOP, StageTask, train_stage
from naspipe.training.session import SessionResult

ORDERS = "naspipe/orders"
"""Key in the store under which the leader counts its orders; each order has a key below it."""

POLL_SECONDS = 0.1
"""Seconds between two looks for the leader's next order."""

HEAD_START_SECONDS = 2.0
"""Seconds that the others wait after the leader has failed, so that torchrun names the leader as the cause."""

STOPPED = 128 + signal.SIGTERM
"""Exit code of a process that was stopped by SIGTERM."""


@contextlib.contextmanager
def leading() -> Iterator[None]:
    """Run the leader's command in this context; the other processes are told when and how it ended."""
    end_with(os.getppid())
    store = find_store()
    code = 1
    try:
        yield
        code = 0
    except NaspipeError as error:
        code = error.exit_code
        raise
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    finally:
        # If torchrun was killed, no process is left to be told.
        with contextlib.suppress(DistError):
            _order(store, {"ended": code, "host": socket.gethostname()})


def lead(task: StageTask) -> list[SessionResult]:
    """Train stage 0 in this process and the other stages in the others; return the results of all.

    Raises:
        TrainingError: This or another stage failed, or the processes differ.
    """
    store = find_store()
    with token_in(Path(task.folder)) as token:
        task = task._replace(token=str(token))
        return train_stage(task, _training(store, _order(store, {"task": task._asdict()})))


def follow() -> None:
    """Train this process's stage whenever the leader orders it, until the leader's command has ended.

    Raises:
        TrainingError: This or another stage failed, or the leader was lost.
        LeaderFailedError: The leader's command failed.
        SystemExit: SIGTERM came, and the training was stopped.
    """
    # torchrun may be killed while this process waits.
    end_with(os.getppid())
    store = find_store()
    stopping = threading.Event()
    for number in itertools.count(1):
        try:
            order = _wait_for_order(store, number)
        except DistError as error:
            if stopping.is_set():
                raise SystemExit(STOPPED) from None
            raise TrainingError(
                f"the process of rank 0 must live until its command has ended, but rank {os.environ['RANK']} on "
                f"{socket.gethostname()} has lost it: it, its torchrun, or its machine was ended. {error}"
            ) from None
        if "ended" in order:
            _end_as(order["ended"], order["host"])
            return
        with _asking_on_sigterm(number, stopping):
            train_stage(StageTask(**order["task"]), _training(store, number))


class LeaderFailedError(TrainingError):
    """The process of rank 0 failed; this process ends with its exit code."""

    def __init__(self, code: int, host: str) -> None:
        super().__init__(f"the process of rank 0, on {host}, ended with code {code}; its output says why.")
        self.exit_code = code


def _end_as(code: int, host: str) -> None:
    if code == STOPPED:
        raise SystemExit(STOPPED)
    if code:
        time.sleep(HEAD_START_SECONDS)
        raise LeaderFailedError(code, host)


def _order(store: Store, order: dict[str, Any]) -> int:
    """Give an order to all processes; returns its number."""
    number: int = store.add(ORDERS, 1)
    store.set(f"{ORDERS}/{number}", json.dumps(order))
    return number


def _wait_for_order(store: Store, number: int) -> dict[str, Any]:
    key = f"{ORDERS}/{number}"
    # store.wait() ignores interrupts, and prints a warning whenever its time is up.
    while not store.check([key]):
        time.sleep(POLL_SECONDS)
    order: dict[str, Any] = json.loads(store.get(key))
    return order


def _training(store: Store, number: int) -> Store:
    """Return the keys of the store that belong to the training of an order."""
    return PrefixStore(f"naspipe/training/{number}", store)


@contextlib.contextmanager
def _asking_on_sigterm(number: int, stopping: threading.Event) -> Iterator[None]:
    """In this context, SIGTERM makes this process ask the leader to stop the training, and continue until it does.

    A scheduler sends the signal to all machines, but not at the same moment. torchrun also sends it if another process
    has failed. Then this process fails as well, or torchrun kills it in the end.
    """

    def ask() -> None:
        # A connection of its own, since the other one may be waiting.
        with contextlib.suppress(DistError):
            _training(find_store(), number).set(STOP, "")

    def handle(_: int, __: FrameType | None) -> None:
        stopping.set()
        threading.Thread(target=ask, daemon=True).start()

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
