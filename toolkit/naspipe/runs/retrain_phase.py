"""The retraining phase of a run: trains the rows of its table one after another, and keeps the row that wins."""

from __future__ import annotations

import warnings

from naspipe.errors import NaspipeWarning
from naspipe.files import copy_file, write_json, writing
from naspipe.records import BestScores
from naspipe.results.retraining_rows import RetrainingRow, RowFolder, choose_row, row_folder
from naspipe.results.view import RunView
from naspipe.runs.fingerprint import retrain_fingerprint
from naspipe.runs.retrain_rows import retrain_rows
from naspipe.training.progress import Watch
from naspipe.training.standalone import SINGLE_PROCESS


def retrain_best(view: RunView, watch: Watch) -> None:
    """Train the rows that are not finished, and copy the row that wins to ``best/``.

    Args:
        view: A run whose search has finished; this process holds its lock and computes deterministically.
        watch: Called with the progress.

    Raises:
        RunFolderError: A file is damaged, or a setting has changed since the first row began.
        TrainingError: A row cannot be trained; the rows before it are kept.
        RunError: A saved model does not evaluate as the trained one did, or a file cannot be written.
        InputError: This machine cannot run ``retrain.processes``.
    """
    rows, processes, best = view.rows(), view.config.retrain.processes, view.config.retrain.best
    found = len({row.trial for row in rows})
    if found < best:
        warnings.warn(
            f"retrain.best = {best}, but the search has {found} architecture{'s' if found > 1 else ''} to offer, "
            "and no more are retrained.",
            NaspipeWarning,
            stacklevel=3,
        )
    missing = [row for row in rows if not row_folder(view.folder, row).metrics.exists()]
    names = [row.name for row in missing]
    fingerprint = retrain_fingerprint(view.context, view.folder)
    if processes > 1 and any(row.trains for row in missing):
        # torch.distributed is imported only where it is used.
        from naspipe.runs.retrain_processes import retrain_in_processes
        from naspipe.training.distributed.requirements import check_retrain_processes

        check_retrain_processes(view.config)
        fingerprint.check(fingerprint.path.exists())
        retrain_in_processes(view.path, names, processes, watch)
    else:
        fingerprint.check(fingerprint.path.exists())
        retrain_rows(view, names, SINGLE_PROCESS, watch)
    _keep_winner(view, rows)


def _keep_winner(view: RunView, rows: list[RetrainingRow]) -> None:
    """Copy the files of the row that is best on the validation split; its metrics come last, and finish the phase."""
    scores = view.retrained()
    winner, metric = choose_row(scores, view.components.objectives)
    files = RowFolder(view.folder.retraining / rows[scores.index(winner)].name)
    copy_file(files.model, view.folder.best_model)
    if files.epochs.exists():
        copy_file(files.epochs, view.folder.retraining_metrics)
    else:
        with writing(view.folder.retraining_metrics):
            view.folder.retraining_metrics.unlink(missing_ok=True)
    write_json(view.folder.best_metrics, BestScores(**winner.model_dump(), chosen_by=metric).model_dump())
