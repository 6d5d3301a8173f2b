"""The readable beginning of a run's logs, for a run that may still be running, or was interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from naspipe.errors import RunFolderError
from naspipe.search.trial import Trial

if TYPE_CHECKING:
    from naspipe.results.view import RunView


def read_records(lines: Iterator[Any]) -> tuple[list[Any], str]:
    """Return the lines up to the first damaged one, and a sentence on its damage."""
    records: list[Any] = []
    try:
        for record in lines:
            records.append(record)
    except RunFolderError as error:
        return records, f"The file is damaged, and only what comes before is shown: {error}"
    return records, ""


def read_trials(run: RunView) -> tuple[list[Trial], str]:
    """Return the trials up to the first damaged line, by their index, and a sentence on its damage.

    Several processes may evaluate at a time, so the lines may be out of order.
    """
    trials, damage = read_records(run.folder.evaluated(run.components.space, run.components.objectives))
    return sorted(trials, key=lambda trial: trial.index), damage
