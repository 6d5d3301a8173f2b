"""Rows of the retraining: an architecture, initial weights and a seed; planned, read back, compared."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from naspipe.config.schema import Init, RetrainConfig
from naspipe.files import read_json, read_lines, reading
from naspipe.keys import derive_key
from naspipe.records import EpochLine, RowScores
from naspipe.results.folder import RunFolder
from naspipe.search.objective import Objective
from naspipe.search.selection import best_trials
from naspipe.search.trial import Trial
from naspipe.space import Architecture, SearchSpace

LOSS = Objective("loss", "minimize")
"""The metric that decides if the task measures no objective of the run."""


@dataclass(frozen=True)
class RetrainingRow:
    """One module that is trained, or takes the supernet's weights, and is then measured.

    Attributes:
        trial: The trial in which the search found the architecture.
        architecture: The architecture.
        init: The initial weights.
        seed: Index of the seed, from 0 on; always 0 if nothing is trained.
    """

    trial: int
    architecture: Architecture
    init: Init
    seed: int

    @property
    def name(self) -> str:
        """Name of the row's folder."""
        return f"{self.trial}-{self.init}-{self.seed}"

    @property
    def trains(self) -> bool:
        """Whether the row is trained."""
        return self.init != "inherit"

    def steps(self, epochs: int) -> int:
        """Return the row's number of progress steps: its epochs, or 1."""
        return epochs if self.trains else 1

    def describe(self) -> str:
        """Return the row's description for people."""
        return f"trial {self.trial}, {self.init}, seed {self.seed}"


@dataclass(frozen=True)
class RowFolder:
    """The files of a row.

    Attributes:
        root: Their folder.
    """

    root: Path

    @property
    def epochs(self) -> Path:
        """A line for each epoch; missing if nothing is trained."""
        return self.root / "epochs.jsonl"

    @property
    def model(self) -> Path:
        """The weights."""
        return self.root / "model.safetensors"

    @property
    def metrics(self) -> Path:
        """The scores; exists once the row is finished."""
        return self.root / "metrics.json"

    def logged(self) -> Iterator[EpochLine]:
        """Yield the line of every epoch."""
        return read_lines(self.epochs, EpochLine.model_validate, "Only the report needs this line: delete it.")

    def scores(self) -> RowScores:
        """Return the scores of a finished row."""
        advice = "Delete it, and `naspipe retrain` trains this row again."
        scores: RowScores = read_json(self.metrics, RowScores.model_validate, advice)
        return scores


def seed_of(seed: int, index: int) -> int:
    """Return the seed of a row; index 0 gives the run's seed."""
    return seed if index == 0 else derive_key(seed, "retrain", "seed", index)


def plan_rows(
    folder: RunFolder, config: RetrainConfig, space: SearchSpace, objectives: Sequence[Objective]
) -> list[RetrainingRow]:
    """Return the rows of a run's retraining, ordered by architecture, initial weights and seed.

    There are fewer architectures than ``config.best`` if the search has fewer.

    Args:
        folder: The folder of a run whose search has finished. The architecture that it names best comes first.
        config: The settings of the retraining.
        space: The search space.
        objectives: The run's objectives, which rank the other trials.

    Raises:
        RunFolderError: The search has not finished, or a file is damaged.
    """
    folder.require_best()
    best = folder.best_trial()
    with reading(str(folder.best_architecture), "Has the search space changed?"):
        chosen = Trial(best.trial, space.architecture(Architecture(best.architecture)), best.metrics)
    trials = [chosen]
    if config.best > 1:
        known = list(folder.evaluated(space, objectives))
        ranked = best_trials(known, objectives, len(known)) if known else []
        trials = [chosen, *(trial for trial in ranked if trial.index != chosen.index)][: config.best]
    return [
        RetrainingRow(trial.index, trial.architecture, init, seed)
        for trial in trials
        for init in config.inits
        for seed in range(1 if init == "inherit" else config.seeds)
    ]


def row_folder(folder: RunFolder, row: RetrainingRow) -> RowFolder:
    """Return the files of a row."""
    return RowFolder(folder.retraining / row.name)


def deciding_metric(rows: Sequence[RowScores], objectives: Sequence[Objective]) -> Objective | None:
    """Return the run's first objective among the validation scores, else the loss; None if the loss is not among them.

    Args:
        rows: Finished rows.
        objectives: The run's objectives; those that the task does not measure on samples are skipped.
    """
    measured = {name for row in rows for name in row.validation}
    return next((objective for objective in (*objectives, LOSS) if objective.name in measured), None)


def choose_row(rows: Sequence[RowScores], objectives: Sequence[Objective]) -> tuple[RowScores, str | None]:
    """Return the row that is best on the validation split, and the metric that decided; of equal rows the first.

    A row whose value is missing, because it was not finite, loses to all others. If no metric can decide, the first row
    wins, which has the architecture that the search found best.

    Args:
        rows: Finished rows, at least one.
        objectives: The run's objectives.
    """
    metric = deciding_metric(rows, objectives)
    if metric is None:
        return rows[0], None
    name = metric.name
    with_value = [row for row in rows if name in row.validation]
    return min(with_value, key=lambda row: metric.cost(row.validation[name])), name


@dataclass(frozen=True)
class Spread:
    """The scores of an architecture with one kind of initial weights, over its seeds.

    Attributes:
        rows: Its rows, at least one.
    """

    rows: tuple[RowScores, ...]

    def mean(self, split: str, metric: str) -> tuple[float, float | None] | None:
        """Return mean and sample standard deviation of a metric; None if a row lacks it. One row has no deviation."""
        values = [getattr(row, split).get(metric) for row in self.rows]
        if any(value is None for value in values):
            return None
        return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def spreads(rows: Sequence[RowScores]) -> list[Spread]:
    """Return the rows in groups of one architecture and one kind of initial weights, in order."""
    groups: dict[tuple[int, str], list[RowScores]] = {}
    for row in rows:
        groups.setdefault((row.trial, row.init), []).append(row)
    return [Spread(tuple(group)) for group in groups.values()]


def metric_names(rows: Sequence[RowScores], first: str | None) -> list[str]:
    """Return the metrics of rows in order, but a given metric first."""
    names = list(dict.fromkeys(name for row in rows for name in (*row.validation, *row.test)))
    return sorted(names, key=lambda name: name != first)
