"""The lock of a run's folder: one process at a time works in it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from naspipe.errors import RunFolderError
from naspipe.files import writing
from naspipe.training.distributed.leftovers import clear_leftovers


class RunLock:
    """Keeps other processes from working in a run's folder. The process that holds it may take it again."""

    def __init__(self, root: Path) -> None:
        """Use the lock of a folder; it is not taken yet."""
        self._root = root
        self._is_held = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock. First, clear the leftovers of a killed run: processes that still end, and unfinished files.

        Raises:
            RunFolderError: Another process holds the lock, or a process of a killed run does not end.
        """
        if self._is_held:
            yield
            return
        with locked(self._root):
            clear_leftovers(self._root)
            self._is_held = True
            try:
                yield
            finally:
                self._is_held = False


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Keep other processes from working in a run's folder in this context.

    Raises:
        RunFolderError: Another process works there.
    """
    import fcntl

    path = root / ".lock"
    with contextlib.ExitStack() as stack:
        with writing(path):
            file = stack.enter_context(path.open("a+", encoding="utf-8"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.seek(0)
                raise RunFolderError(
                    f"one process at a time may work in a run's folder, but process "
                    f"{file.read().strip() or '(unknown)'} works in {root}. "
                    "Wait until it has finished, or stop it."
                ) from error
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
        yield
