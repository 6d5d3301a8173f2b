"""The files of rank checks: scores and truths so far, and results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from naspipe.files import read_json, read_lines
from naspipe.records import RankRecord, ScoreLine, TruthLine
from naspipe.space import Architecture, SearchSpace

Line = TypeVar("Line", ScoreLine, TruthLine)


@dataclass(frozen=True)
class RankFiles:
    """The paths within ``RUN/rank_check``, and the contents of the files.

    Attributes:
        root: The folder.
    """

    root: Path

    @property
    def scores(self) -> Path:
        """A line for each evaluation of an architecture, with the trained or the untrained supernet; of all checks."""
        return self.root / "scores.jsonl"

    def truths(self, against: str) -> Path:
        """Return the file with a line for each training, or measure, of an architecture."""
        return self.root / f"truths-{_file_name(against)}.jsonl"

    def result(self, against: str) -> Path:
        """Return the file of a check's result, which exists once the check has finished."""
        return self.root / f"{_file_name(against)}.json"

    def known_scores(self, space: SearchSpace) -> dict[tuple[str, Architecture], ScoreLine]:
        """Return the scores so far, by supernet and architecture."""
        lines = _read(self.scores, ScoreLine, space)
        return {(line.supernet, architecture): line for architecture, line in lines}

    def known_truths(self, against: str, space: SearchSpace) -> dict[tuple[int, Architecture], TruthLine]:
        """Return the truths so far, by index of the training and architecture."""
        lines = _read(self.truths(against), TruthLine, space)
        return {(line.seed, architecture): line for architecture, line in lines}

    def results(self) -> Iterator[RankRecord]:
        """Yield the finished checks, in the order of their files' names."""
        for path in sorted(self.root.glob("*.json")):
            yield read_json(path, RankRecord.model_validate, "Delete it and run `naspipe rank-check` again.")


def _read(path: Path, shape: type[Line], space: SearchSpace) -> Iterator[tuple[Architecture, Line]]:
    def read(data: object) -> tuple[Architecture, Line]:
        line = shape.model_validate(data)
        return space.architecture(Architecture(line.architecture)), line

    advice = "Delete it and every line below; `naspipe rank-check` computes them again."
    make: Callable[[object], tuple[Architecture, Line]] = read
    return read_lines(path, make, advice)


def _file_name(against: str) -> str:
    """Return a truth's name as it stands in file names; a reference has characters that file names may not have."""
    return re.sub(r"[^\w.-]+", "-", against)
