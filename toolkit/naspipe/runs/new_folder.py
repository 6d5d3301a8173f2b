"""The folder of a new run."""

from __future__ import annotations

import contextlib
import datetime
import errno
from collections.abc import Sequence
from pathlib import Path

from naspipe.errors import RunFolderError
from naspipe.results.folder import RunFolder


def create_folder(out: str | Path | None, plugins: Sequence[str]) -> RunFolder:
    """Make a new run folder.

    Args:
        out: The folder, which must not exist; or None: ``runs/NAME-TIME`` below the working directory.
        plugins: Names of plug-ins, which make up the folder's name if ``out`` is None.

    Raises:
        RunFolderError: It exists, or cannot be made.
    """
    if out is not None:
        return RunFolder(_make(Path(out)))
    # Of a reference only the class is used.
    name = "-".join(plugin.rpartition(":")[2] for plugin in plugins)
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    for attempt in range(1, 100):
        suffix = f"-{attempt}" if attempt > 1 else ""
        try:
            return RunFolder(_make(Path("runs") / f"{name}-{stamp}{suffix}"))
        except RunFolderExistsError:
            continue
    raise RunFolderError("no free name for a run folder below runs/; give one with --out.")


class RunFolderExistsError(RunFolderError):
    """The folder of a new run exists already."""


def _make(path: Path) -> Path:
    made: list[Path] = []
    try:
        if path.exists():
            raise FileExistsError(errno.EEXIST, "File exists", str(path))
        for folder in reversed([folder for folder in (path, *path.parents) if not folder.exists()]):
            # Another process may make a parent at the same time, but not the folder itself.
            folder.mkdir(exist_ok=folder != path)
            made.append(folder)
    except OSError as error:
        for folder in reversed(made):
            with contextlib.suppress(OSError):
                folder.rmdir()
        if isinstance(error, FileExistsError):
            raise RunFolderExistsError(
                f"a run never overwrites another, but {error.filename} exists. Give another folder."
            ) from error
        raise RunFolderError(f"the run folder {path} cannot be made: {error.strerror}.") from error
    return path
