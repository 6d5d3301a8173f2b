"""What the files of a run hold: their shapes, checked when they are read back."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, FiniteFloat, RootModel

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
    """A line of ``best/epochs.jsonl``."""

    epoch: int
    loss: FiniteFloat
    lr: FiniteFloat


class BestScores(Record):
    """``best/metrics.json``: the scores of the retrained subnet."""

    text: str
    validation: Numbers
    test: Numbers
    parameters: int
