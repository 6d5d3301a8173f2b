"""The content of a run's files: its shapes, checked when a file is read."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, FiniteFloat, RootModel

Direction = Literal["maximize", "minimize"]
"""Whether a larger or a smaller value of a metric is better."""

Numbers = dict[str, int | FiniteFloat]


class Record(BaseModel):
    """One JSON object: a file, or a line of a file."""

    model_config = ConfigDict(strict=True, frozen=True)


class Facts(RootModel[dict[str, Any]]):
    """``environment.json``."""


class SubnetLine(Record):
    """A line of ``train/metrics.jsonl``."""

    index: int
    architecture: dict[str, Any]
    loss: FiniteFloat | None
    lr: FiniteFloat


class ExportDescription(Record):
    """The keys of an exported model's description that loading it needs."""

    format: Literal["state_dict", "torch.export"]
    file: str
    space: dict[str, Any]
    architecture: dict[str, Any]


class TrialLine(Record):
    """A line of ``search/trials.jsonl``."""

    trial: int
    text: str
    architecture: dict[str, Any]
    metrics: Numbers
    reason: str | None


class TimingLine(Record):
    """A line of ``search/timings.jsonl``."""

    architecture: dict[str, Any]
    metrics: Numbers


class BestTrial(TrialLine):
    """``best/architecture.json``: the best trial, and a note if the search ended before its budget was spent."""

    note: str = ""


class EpochLine(Record):
    """A line of the ``epochs.jsonl`` of a retraining."""

    epoch: int
    loss: FiniteFloat
    lr: FiniteFloat


class RowScores(Record):
    """``metrics.json`` of a row of the retraining table: architecture, start, seed and metrics."""

    text: str
    trial: int
    architecture: dict[str, Any]
    init: Literal["scratch", "inherit", "finetune"]
    seed: int
    validation: Numbers
    test: Numbers
    parameters: int


class BestScores(RowScores):
    """``best/metrics.json``: the best row, and the validation metric that decided; None if there was one row only."""

    chosen_by: str | None


class ScoreLine(Record):
    """A line of ``rank_check/scores.jsonl``: an architecture's metrics with a supernet's weights."""

    supernet: Literal["trained", "untrained"]
    text: str
    architecture: dict[str, Any]
    metrics: Numbers
    reason: str | None


class TruthLine(Record):
    """A line of ``rank_check/truths-AGAINST.jsonl``: an architecture's true value, by a training or from a table."""

    seed: int
    text: str
    architecture: dict[str, Any]
    value: int | FiniteFloat | None
    reason: str | None


class RankedLine(Record):
    """An architecture of a rank check: its rank in the pool by the supernet (1 is the best), and its true values."""

    rank: int
    text: str
    architecture: dict[str, Any]
    score: int | FiniteFloat
    untrained: int | FiniteFloat | None
    truths: list[int | FiniteFloat]
    truth: FiniteFloat | None
    spread: FiniteFloat | None
    reason: str | None


class Correlation(Record):
    """A rank correlation with its 95 % interval: +1 is the true order; all null where there is nothing to rank."""

    value: FiniteFloat | None
    low: FiniteFloat | None
    high: FiniteFloat | None


class Gain(Record):
    """How many architectures the trained supernet scores better or worse than the untrained one; a sign test."""

    better: int
    worse: int
    p_value: FiniteFloat


class RankRecord(Record):
    """``rank_check/AGAINST.json``: the result of a rank check."""

    against: str
    score: str
    score_direction: Direction
    truth: str
    truth_direction: Direction
    seeds: int
    pool: int
    kendall: Correlation
    spearman: Correlation
    gain: Gain
    warnings: list[str]
    architectures: list[RankedLine]
