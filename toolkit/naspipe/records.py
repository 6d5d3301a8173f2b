"""What the files of a run hold: their shapes, checked when they are read back."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, FiniteFloat, RootModel

Direction = Literal["maximize", "minimize"]
"""Which way a metric is better."""

Numbers = dict[str, int | FiniteFloat]


class Record(BaseModel):
    """One JSON object: a file, or a line of one."""

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
    """What of the description of an exported model is needed to load it."""

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
    """``best/architecture.json``: the winning trial, and why the search ended early, if it did."""

    note: str = ""


class EpochLine(Record):
    """A line of the ``epochs.jsonl`` of a retraining."""

    epoch: int
    loss: FiniteFloat
    lr: FiniteFloat


class RowScores(Record):
    """``metrics.json`` of a row of the retraining: what was trained from what, and its scores."""

    text: str
    trial: int
    architecture: dict[str, Any]
    init: Literal["scratch", "inherit", "finetune"]
    seed: int
    validation: Numbers
    test: Numbers
    parameters: int


class BestScores(RowScores):
    """``best/metrics.json``: the row that won, and the validation metric that decided, if one did."""

    chosen_by: str | None


class ScoreLine(Record):
    """A line of ``rank_check/scores.jsonl``: an architecture with a supernet's weights."""

    supernet: Literal["trained", "untrained"]
    text: str
    architecture: dict[str, Any]
    metrics: Numbers
    reason: str | None


class TruthLine(Record):
    """A line of ``rank_check/truths-AGAINST.jsonl``: an architecture's true value, by one training if it takes one."""

    seed: int
    text: str
    architecture: dict[str, Any]
    value: int | FiniteFloat | None
    reason: str | None


class RankedLine(Record):
    """An architecture of a rank check: its place by the supernet among the pool, 1 the best, and its truth."""

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
    """A rank correlation with its 95 % interval: +1 is the order of the truth; all null where nothing is ranked."""

    value: FiniteFloat | None
    low: FiniteFloat | None
    high: FiniteFloat | None


class Gain(Record):
    """In how many pairs the trained supernet scores better than the untrained one and worse, and a sign test."""

    better: int
    worse: int
    p_value: FiniteFloat


class RankRecord(Record):
    """``rank_check/AGAINST.json``: what came of a rank check."""

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
