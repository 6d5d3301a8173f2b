"""Leftovers of a run that was killed: processes that still write, and files that were being written."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from naspipe.errors import RunFolderError
from naspipe.files import writing

PATIENCE_SECONDS = 60.0
"""Seconds to wait for processes whose launcher has died; they check that twice a second."""

SCRATCH = ".launcher"
"""Name of the folder of a launcher's files."""

_MARK = ".working"
_LOOK_SECONDS = 0.1
_TEMPORARY = re.compile(r"\..+\.\d+(\.\w+)?")
"""Names of unfinished files; a finished file is renamed into place."""


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Hold a mark in a folder, which shows that a process writes there without holding the run's lock."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _MARK).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


def remove_mark(folder: Path) -> None:
    """Remove the mark once all processes that held it have ended."""
    (folder / _MARK).unlink(missing_ok=True)


def clear_leftovers(root: Path) -> None:
    """Wait until no process writes in a run's folder, and remove unfinished files.

    Args:
        root: The folder; this process holds its lock.

    Raises:
        RunFolderError: A process does not end.
        RunError: A file cannot be removed.
    """
    end = time.monotonic() + PATIENCE_SECONDS
    for mark in root.glob(f"*/{_MARK}"):
        while _is_held(mark):
            if time.monotonic() > end:
                raise RunFolderError(
                    f"a run is resumed when no process of it is left, but a process still holds {mark}, "
                    f"{PATIENCE_SECONDS:.0f} seconds after the process that started it had ended. Find it (fuser names "
                    "it), and kill it."
                )
            time.sleep(_LOOK_SECONDS)
    with writing(root):
        for path in [*root.rglob(".*")]:
            if path.name == SCRATCH:
                shutil.rmtree(path, ignore_errors=True)
            elif path.name == _MARK or _TEMPORARY.fullmatch(path.name):
                path.unlink(missing_ok=True)


def _is_held(mark: Path) -> bool:
    import fcntl

    with mark.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
