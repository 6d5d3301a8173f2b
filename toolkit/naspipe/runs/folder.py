"""The run folder: where everything of a run lies, and how far it has come."""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from naspipe.errors import RunFolderError
from naspipe.files import read_json, read_lines, writing
from naspipe.records import BestScores, BestTrial, Facts, SubnetLine, TimingLine
from naspipe.search.objective import Objective
from naspipe.search.trial import Trial
from naspipe.space import Architecture, SearchSpace


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
    def training_settings(self) -> Path:
        """What the training depends on, as it was when it began."""
        return self.root / "train" / "settings.json"

    @property
    def checkpoints(self) -> Path:
        """What a training that was broken off goes on from; gone once it has finished."""
        return self.root / "train" / "checkpoints"

    @property
    def stop_request(self) -> Path:
        """There while a training has been asked to stop."""
        return self.root / "train" / ".stop"

    @property
    def supernet(self) -> Path:
        """The trained supernet's weights; there once training has finished."""
        return self.root / "train" / "supernet.safetensors"

    @property
    def trace(self) -> Path:
        """What each stage did and saw while the supernet was trained, as a plan's file; if it was asked for."""
        return self.root / "train" / "trace.json"

    @property
    def plan(self) -> Path:
        """The plan that a traced training followed; there where the trace is."""
        return self.root / "train" / "plan.json"

    @property
    def costs(self) -> Path:
        """What blocks were measured to take, if the plan was made from that."""
        return self.root / "train" / "costs.json"

    @property
    def trials(self) -> Path:
        """A line per evaluated architecture."""
        return self.root / "search" / "trials.jsonl"

    @property
    def timings(self) -> Path:
        """A line per architecture of which something was measured by the clock."""
        return self.root / "search" / "timings.jsonl"

    @property
    def search_settings(self) -> Path:
        """What the search depends on, as it was when it began."""
        return self.root / "search" / "settings.json"

    @property
    def study(self) -> Path:
        """The trials as an Optuna study, which optuna-dashboard opens; behind the trials until the search ends."""
        return self.root / "search" / "study.journal"

    @property
    def search_clock(self) -> Path:
        """Seconds that the search has taken; there if its budget is one of time."""
        return self.root / "search" / "seconds.json"

    @property
    def best_architecture(self) -> Path:
        """The best architecture; there once the search has finished."""
        return self.root / "best" / "architecture.json"

    @property
    def retraining(self) -> Path:
        """A folder for each row of the retraining."""
        return self.root / "retrain"

    @property
    def retraining_settings(self) -> Path:
        """What the rows of the retraining have in common."""
        return self.retraining / "settings.json"

    @property
    def retraining_metrics(self) -> Path:
        """A line per epoch of the row that won; missing if that was not trained."""
        return self.root / "best" / "epochs.jsonl"

    @property
    def best_model(self) -> Path:
        """The weights of the row that won."""
        return self.root / "best" / "model.safetensors"

    @property
    def best_metrics(self) -> Path:
        """Its scores; there once all rows are finished."""
        return self.root / "best" / "metrics.json"

    @property
    def rank_check(self) -> Path:
        """The folder of what rank checks found out."""
        return self.root / "rank_check"

    @property
    def report(self) -> Path:
        """The page that shows the run."""
        return self.root / "report.html"

    @property
    def quoted(self) -> str:
        """The folder as a command line spells it."""
        return shlex.quote(str(self.root))

    def facts(self) -> dict[str, Any]:
        """Return what the run was computed with."""
        advice = "To do without what it says of the machine, write {} to it."
        facts: dict[str, Any] = read_json(self.environment, Facts.model_validate, advice).root
        return facts

    def subnets(self) -> Iterator[SubnetLine]:
        """Yield what was logged of every trained subnet."""
        advice = "Only the report needs this line: delete it."
        return read_lines(self.training_metrics, SubnetLine.model_validate, advice)

    def evaluated(self, space: SearchSpace, objectives: Sequence[Objective] = ()) -> Iterator[Trial]:
        """Yield the trials so far, in order; complete ones must have these objectives."""
        advice = "Delete it and every line below; the search evaluates these architectures again."

        def read(record: object) -> Trial:
            return Trial.from_record(record, space, objectives)

        return read_lines(self.trials, read, advice)

    def timed(self) -> dict[str, dict[str, float]]:
        """Return what was measured by the clock, by the JSON of the architecture."""
        advice = "Delete it and every line below; it is measured again."
        found: dict[str, dict[str, float]] = {}
        for line in read_lines(self.timings, TimingLine.model_validate, advice):
            found.setdefault(Architecture(line.architecture).to_json(), {}).update(line.metrics)
        return found

    def put_aside_results(self, trials: int) -> None:
        """Rename what a search and a retraining have led to, so that others can take their place.

        Args:
            trials: Of the search so far; names what is put aside.

        Raises:
            RunFolderError: Something of the new name is there already.
        """
        if not self.best_architecture.parent.exists():
            return
        aside = self.root / f"best.after-{trials}-trials"
        if aside.exists():
            raise RunFolderError(
                f"the results of the smaller budget would become {aside}, but it exists. Move it away."
            )
        with writing(aside):
            self.best_architecture.parent.rename(aside)

    def best_trial(self) -> BestTrial:
        """Return the trial that the search found best."""
        advice = f"Delete it and run `naspipe search {self.quoted}`: the trials are kept."
        best: BestTrial = read_json(self.best_architecture, BestTrial.model_validate, advice)
        return best

    def best_scores(self) -> BestScores:
        """Return the scores of the retrained subnet."""
        advice = f"Delete it and run `naspipe retrain {self.quoted}`."
        scores: BestScores = read_json(self.best_metrics, BestScores.model_validate, advice)
        return scores

    def require_supernet(self) -> None:
        """Raise an error unless the supernet has been trained.

        Raises:
            RunFolderError: It has not.
        """
        if self.supernet.exists():
            return
        self._refuse_interrupted()
        raise RunFolderError(
            f"{self.root} has no trained supernet yet: there is no {self.supernet.relative_to(self.root)}. "
            f"Train it in a new run: `{self.retry}`."
        )

    def require_best(self) -> None:
        """Raise an error unless the search has finished.

        Raises:
            RunFolderError: It has not.
        """
        self._require(self.best_architecture, "best architecture", "search")

    def require_retrained(self) -> None:
        """Raise an error unless the best subnet has been retrained.

        Raises:
            RunFolderError: It has not.
        """
        self._require(self.best_metrics, "retrained model", "retrain")

    def _require(self, path: Path, what: str, command: str) -> None:
        if not path.exists():
            raise RunFolderError(
                f"{self.root} has no {what} yet: there is no {path.relative_to(self.root)}. "
                f"Run `naspipe {command} {self.quoted}` first."
            )

    def refuse(self, path: Path, what: str, more: str = "") -> None:
        """Raise an error if a phase has left something already.

        Raises:
            RunFolderError: Its file is there.
        """
        if path.exists():
            raise RunFolderError(
                f"{self.root} has {what} already: {path.relative_to(self.root)} exists, and nothing is "
                f"overwritten. Start a new run: `{self.retry}`. {more}".rstrip()
            )

    def refuse_trained(self) -> None:
        """Raise an error if the supernet has been trained, or its training was broken off.

        Raises:
            RunFolderError: One of the two.
        """
        self.refuse(self.supernet, "a trained supernet")
        self._refuse_interrupted()

    def _refuse_interrupted(self) -> None:
        if self.training_metrics.exists():
            raise RunFolderError(
                f"{self.root} has the log of a training that was broken off, "
                f"{self.training_metrics.relative_to(self.root)}. {self.how_to_go_on}"
            )

    @property
    def retry(self) -> str:
        """The command that does the same in a new folder."""
        return f"naspipe train {shlex.quote(str(self.config))}"

    @property
    def how_to_go_on(self) -> str:
        """What to do about a run that was broken off."""
        return f"To go on: naspipe resume {self.quoted}"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from working in the folder meanwhile.

        Raises:
            RunFolderError: Another one does.
        """
        import fcntl

        path = self.root / ".lock"
        with contextlib.ExitStack() as stack:
            with writing(path):
                file = stack.enter_context(path.open("a+", encoding="utf-8"))
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    file.seek(0)
                    raise RunFolderError(
                        f"one process at a time may work in a run's folder, but process "
                        f"{file.read().strip() or '(unknown)'} works in {self.root}. "
                        "Wait until it has finished, or stop it."
                    ) from error
                file.truncate(0)
                file.write(f"{os.getpid()}\n")
                file.flush()
            yield


def create_folder(out: str | Path | None, plugins: Sequence[str]) -> RunFolder:
    """Make a new run folder.

    Args:
        out: The folder, which must not exist; or None: ``runs/NAME-TIME`` below the working directory.
        plugins: Names of the plug-ins that the run is called after if ``out`` is None.

    Raises:
        RunFolderError: It exists, or cannot be made.
    """
    if out is not None:
        return RunFolder(_make(Path(out)))
    # Of a reference only the class.
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
            # Another process may make a parent meanwhile, but not the folder itself.
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
