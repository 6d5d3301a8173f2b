"""Processes that are forks of one that has imported torch already, where a test needs no new one.

A fresh Python that imports torch takes about two seconds of a core, and four when it makes an optimizer. A fork takes
none. It hashes otherwise than the process of the tests, and has none of its state. What it does not have: signals that
are blocked where it is started, and the launcher as its parent.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

PRELOAD = "forked_imports"


class ForkedProcess(ForkServerProcess):
    """A fork with the environment of the process that asks for it."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._environment = dict(os.environ)

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        super().run()


class ForkedContext(ForkServerContext):
    """Takes the place of multiprocessing's context that starts new processes."""

    Process = ForkedProcess  # type: ignore[assignment]  # multiprocessing declares its own class


CONTEXT = ForkedContext()


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
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


def call_in_fork(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function of a module gives in a fork."""
    here, there = multiprocessing.Pipe()
    process = CONTEXT.Process(target=_answer, args=(there, function, arguments))
    process.start()
    there.close()
    try:
        value, error = here.recv()
    finally:
        process.join()
    assert error is None, error
    return value


def _answer(connection: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        connection.send((function(*arguments), None))
    except BaseException:
        connection.send((None, traceback.format_exc()))
