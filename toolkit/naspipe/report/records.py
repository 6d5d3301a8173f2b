"""What a run has logged so far, as far as it can be read: for what shows runs that go on or were broken off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from naspipe.errors import RunFolderError
from naspipe.search.trial import Trial

if TYPE_CHECKING:
    from naspipe.results.view import RunView


def read_records(lines: Iterator[Any]) -> tuple[list[Any], str]:
    """Return the lines up to the first damaged one, and what is wrong with that."""
    records: list[Any] = []
    try:
        for record in lines:
            records.append(record)
    except RunFolderError as error:
        return records, f"The file is damaged, and only what comes before is shown: {error}"
    return records, ""


def read_trials(run: RunView) -> tuple[list[Trial], str]:
    """Return the trials up to the first damaged line by their index, and what is wrong with that line.

    Several processes evaluate at a time, so that after an interrupt the lines need not be in order.
    """
    trials, damage = read_records(run.folder.evaluated(run.components.space, run.components.objectives))
    return sorted(trials, key=lambda trial: trial.index), damage
