"""The run folder: the paths of a run's files, and how far the run is."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from naspipe.errors import RunFolderError
from naspipe.files import read_json, read_lines
from naspipe.records import BestScores, BestTrial, Facts, TimingLine
from naspipe.search.objective import Objective
from naspipe.search.trial import Trial
from naspipe.space import Architecture, SearchSpace
from naspipe.training.files import TrainingFiles


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
    def training(self) -> TrainingFiles:
        """The files of the supernet's training."""
        return TrainingFiles(self.root / "train")

    @property
    def supernet(self) -> Path:
        """The trained supernet's weights; exists once the training has finished."""
        return self.training.supernet

    @property
    def trials(self) -> Path:
        """A line for each evaluated architecture."""
        return self.root / "search" / "trials.jsonl"

    @property
    def timings(self) -> Path:
        """A line for each architecture with a measure that is taken by the clock."""
        return self.root / "search" / "timings.jsonl"

    @property
    def search_settings(self) -> Path:
        """The settings that the search depends on, as they were when it began."""
        return self.root / "search" / "settings.json"

    @property
    def study(self) -> Path:
        """The trials as an Optuna study, which optuna-dashboard opens; complete once the search has ended."""
        return self.root / "search" / "study.journal"

    @property
    def search_clock(self) -> Path:
        """Seconds that the search has taken; exists if its budget limits the time."""
        return self.root / "search" / "seconds.json"

    @property
    def best_architecture(self) -> Path:
        """The best architecture; exists once the search has finished."""
        return self.root / "best" / "architecture.json"

    @property
    def retraining(self) -> Path:
        """A folder for each row of the retraining."""
        return self.root / "retrain"

    @property
    def retraining_settings(self) -> Path:
        """The settings that all rows of the retraining share."""
        return self.retraining / "settings.json"

    @property
    def retraining_metrics(self) -> Path:
        """A line for each epoch of the row that won; missing if that row was not trained."""
        return self.root / "best" / "epochs.jsonl"

    @property
    def best_model(self) -> Path:
        """The weights of the row that won."""
        return self.root / "best" / "model.safetensors"

    @property
    def best_metrics(self) -> Path:
        """The scores of the row that won; exists once all rows are finished."""
        return self.root / "best" / "metrics.json"

    @property
    def rank_check(self) -> Path:
        """The folder of the rank checks."""
        return self.root / "rank_check"

    @property
    def report(self) -> Path:
        """The report of the run, an HTML page."""
        return self.root / "report.html"

    @property
    def quoted(self) -> str:
        """The folder, quoted for a command line."""
        return shlex.quote(str(self.root))

    def facts(self) -> dict[str, Any]:
        """Return versions, threads and devices of the run."""
        advice = "To resume without the facts of the machine, write {} to it."
        facts: dict[str, Any] = read_json(self.environment, Facts.model_validate, advice).root
        return facts

    def evaluated(self, space: SearchSpace, objectives: Sequence[Objective] = ()) -> Iterator[Trial]:
        """Yield the trials so far, in order; complete trials must have these objectives."""
        advice = "Delete it and every line below; the search evaluates these architectures again."

        def read(record: object) -> Trial:
            return Trial.from_record(record, space, objectives)

        return read_lines(self.trials, read, advice)

    def timed(self) -> dict[str, dict[str, float]]:
        """Return the measures that were taken by the clock, by the JSON of the architecture."""
        advice = "Delete it and every line below; it is measured again."
        found: dict[str, dict[str, float]] = {}
        for line in read_lines(self.timings, TimingLine.model_validate, advice):
            found.setdefault(Architecture(line.architecture).to_json(), {}).update(line.metrics)
        return found

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
            RunFolderError: It has not been trained.
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
            RunFolderError: It has not finished.
        """
        self._require(self.best_architecture, "best architecture", "search")

    def require_retrained(self) -> None:
        """Raise an error unless the best subnet has been retrained.

        Raises:
            RunFolderError: It has not been retrained.
        """
        self._require(self.best_metrics, "retrained model", "retrain")

    def _require(self, path: Path, what: str, command: str) -> None:
        if not path.exists():
            raise RunFolderError(
                f"{self.root} has no {what} yet: there is no {path.relative_to(self.root)}. "
                f"Run `naspipe {command} {self.quoted}` first."
            )

    def refuse(self, path: Path, what: str, more: str = "") -> None:
        """Raise an error if a file of a phase exists.

        Raises:
            RunFolderError: It exists.
        """
        if path.exists():
            raise RunFolderError(
                f"{self.root} has {what} already: {path.relative_to(self.root)} exists, and nothing is "
                f"overwritten. Start a new run: `{self.retry}`. {more}".rstrip()
            )

    def refuse_trained(self) -> None:
        """Raise an error if the supernet has been trained, or its training was interrupted.

        Raises:
            RunFolderError: It has been trained, or was interrupted.
        """
        self.refuse(self.supernet, "a trained supernet")
        self._refuse_interrupted()

    def _refuse_interrupted(self) -> None:
        if self.training.metrics.exists():
            raise RunFolderError(
                f"{self.root} has the log of a training that was interrupted, "
                f"{self.training.metrics.relative_to(self.root)}. {self.how_to_resume}"
            )

    @property
    def retry(self) -> str:
        """The command that trains the same configuration in a new folder."""
        return f"naspipe train {shlex.quote(str(self.config))}"

    @property
    def fork(self) -> str:
        """The command that resumes a copy of the run."""
        return f"naspipe resume {self.quoted} --fork NEW_RUN"

    @property
    def how_to_resume(self) -> str:
        """The command that resumes the run, as a sentence."""
        return f"To resume: naspipe resume {self.quoted}"
