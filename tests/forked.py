"""Processes that are forks of one that has imported torch already, where a test needs no new one.

A fresh Python that imports torch takes about two seconds of a core, and four when it makes an optimizer. A fork takes
none. It hashes otherwise than the process of the tests, and has none of its state. What it does not have: signals that
are blocked where it is started, and the launcher as its parent.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

import torch

PRELOAD = "forked_imports"


class ForkedProcess(ForkServerProcess):
    """A fork with the environment of the process that asks for it."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._environment = dict(os.environ)

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        # A fork asks the process that it comes from for other forks; Python would start one more.
        forkserver._forkserver.ensure_running = lambda: None  # type: ignore[attr-defined]  # not in the type stubs
        try:
            super().run()
        except BaseException:
            # As long as a new process with torch takes to end; else two that fail one after the other seem to at once.
            time.sleep(0.5)
            raise


class ForkedContext(ForkServerContext):
    """Takes the place of multiprocessing's context that starts new processes."""

    Process = ForkedProcess  # type: ignore[assignment]  # multiprocessing declares its own class


CONTEXT = ForkedContext()


def use_forks(put: Callable[[object, str, object], None] = setattr) -> None:
    """Let the processes of workers and of stages be forks.

    Args:
        put: Sets an attribute; monkeypatch.setattr where it is to be undone.
    """
    for module in (multiprocessing, torch.multiprocessing):
        put(module, "get_context", lambda method=None: CONTEXT)


def server_id() -> int | None:
    """Return the id of the process that forks, if there is one."""
    found: int | None = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]  # not in the type stubs
    return found


@contextmanager
def fork_server() -> Iterator[None]:
    """Start the process that forks; wait for it at the end, so that its time counts."""
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    before = {name: os.environ.get(name) for name in ("PYTHONHASHSEED", "PYTHONPATH")}
    os.environ.update(PYTHONHASHSEED=seed, PYTHONPATH=os.pathsep.join(sys.path))
    try:
        CONTEXT.set_forkserver_preload([PRELOAD])
        forkserver.ensure_running()
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    yield
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # not in the type stubs


def call_in_fork(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function of a module gives in a fork."""
    return call_in_forks(function, arguments)[0]


def call_in_forks(function: Callable[..., Any], *calls: Sequence[Any]) -> list[Any]:
    """Return what a function of a module gives in forks that run at the same time, one for each row of arguments."""
    started = []
    for arguments in calls:
        here, there = multiprocessing.Pipe()
        process = CONTEXT.Process(target=_answer, args=(there, function, arguments))
        process.start()
        there.close()
        started.append((process, here))
    values = []
    for process, here in started:
        value, error = here.recv()
        process.join()
        assert error is None, error
        values.append(value)
    return values


def _answer(connection: Connection, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    try:
        connection.send((function(*arguments), None))
    except BaseException:
        connection.send((None, traceback.format_exc()))
