"""The run folder: where everything of a run lies, and how far it has come."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from naspipe.errors import RunFolderError


@dataclass(frozen=True)
class RunFolder:
    """The paths within a run's folder.

    Attributes:
        root: The folder.
    """

    root: Path

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.root / "config.yaml"

    @property
    def environment(self) -> Path:
        """Versions, threads and devices."""
        return self.root / "environment.json"

    @property
    def training_metrics(self) -> Path:
        """A line per subnet: index, architecture, loss, lr."""
        return self.root / "train" / "metrics.jsonl"

    @property
    def supernet(self) -> Path:
        """The trained supernet's weights; there once training has finished."""
        return self.root / "train" / "supernet.safetensors"

    @property
    def trials(self) -> Path:
        """A line per evaluated architecture."""
        return self.root / "search" / "trials.jsonl"

    @property
    def best_architecture(self) -> Path:
        """The best architecture; there once the search has finished."""
        return self.root / "best" / "architecture.json"

    @property
    def retraining_metrics(self) -> Path:
        """A line per epoch of retraining."""
        return self.root / "best" / "epochs.jsonl"

    @property
    def best_model(self) -> Path:
        """The retrained best subnet's weights."""
        return self.root / "best" / "model.safetensors"

    @property
    def best_metrics(self) -> Path:
        """Its scores; there once retraining has finished and been checked."""
        return self.root / "best" / "metrics.json"

    @property
    def report(self) -> Path:
        """The page that shows the run."""
        return self.root / "report.html"

    def require(self, path: Path, what: str, command: str) -> None:
        """Raise an error unless a phase has finished.

        Raises:
            RunFolderError: Its last file is not there; ``command`` makes it.
        """
        if not path.exists():
            raise RunFolderError(
                f"{self.root} has no {what} yet: there is no {path.relative_to(self.root)}. "
                f"Run `{command}` first."
            )

    def refuse(self, path: Path, what: str) -> None:
        """Raise an error if a phase has left something already.

        Raises:
            RunFolderError: Its file is there.
        """
        if path.exists():
            raise RunFolderError(
                f"{self.root} has {what} already: {path.relative_to(self.root)} exists, and nothing is "
                "overwritten. Start a new run."
            )


def create_folder(out: Path | None, name: str) -> RunFolder:
    """Make a new run folder.

    Args:
        out: The folder, which must not exist; or None: ``runs/NAME-TIME`` below the working directory.
        name: What the run is called if ``out`` is None.

    Raises:
        RunFolderError: It exists, or cannot be made.
    """
    if out is not None:
        return RunFolder(_make(out))
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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
    except FileExistsError as error:
        raise RunFolderExistsError(
            f"a run never overwrites another, but {error.filename} exists. Give another folder with --out."
        ) from error
    except OSError as error:
        raise RunFolderError(f"the run folder {path} cannot be made: {error.strerror}.") from error
    return path
