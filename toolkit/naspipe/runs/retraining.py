"""The retraining of a run: the rows of its table one after another, and the one that wins."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Container
from typing import TYPE_CHECKING

from torch import nn

from naspipe.errors import NaspipeWarning, RunError, RunFolderError, TrainingError
from naspipe.files import JsonLines, copy_file, read_json, save_tensors, write_json, writing
from naspipe.records import BestScores
from naspipe.runs.progress import Progress
from naspipe.runs.rows import Row, RowFolder, choose_row, row_folder, seed_of
from naspipe.runs.weights import load_weights
from naspipe.search.evaluation import Evaluator, measure_split
from naspipe.search.measures import count_parameters
from naspipe.search.objective import read_metrics
from naspipe.search.retraining import EpochRecord, retrain
from naspipe.supernet.supernet import build_subnet
from naspipe.training.share import ALONE, Share
from naspipe.usercode import calling

if TYPE_CHECKING:
    from naspipe.runs.run import Run

ROW_SETTINGS = {"init", "seeds", "best"}
"""Keys of ``retrain`` that say which rows there are; they may differ when a retraining is resumed."""


def retrain_best(run: Run) -> None:
    """Do the rows that are not finished, and put the one that wins into ``best/``.

    Args:
        run: A run whose search has finished; this process holds its folder and computes deterministically.

    Raises:
        RunFolderError: A file is damaged, or a setting has changed since the first row began.
        TrainingError: A row cannot go on; those before it stay.
        RunError: A saved model does not evaluate as the trained one did, or a file cannot be written.
        InputError: This machine cannot run ``retrain.processes``.
    """
    rows, processes, best = run.rows(), run.config.retrain.processes, run.config.retrain.best
    found = len({row.trial for row in rows})
    if found < best:
        warnings.warn(
            f"retrain.best = {best}, but the search has {found} architecture{'s' if found > 1 else ''} to offer, "
            "and no more are retrained.",
            NaspipeWarning,
            stacklevel=3,
        )
    missing = [row for row in rows if not row_folder(run.folder, row).metrics.exists()]
    names = [row.name for row in missing]
    if processes > 1 and any(row.trains for row in missing):
        # The launcher is imported only where it is used.
        from naspipe.runs.replicas import check_replicas, retrain_in_processes

        check_replicas(run.config)
        _settle(run)
        retrain_in_processes(run.path, names, processes, run.watch)
    else:
        _settle(run)
        retrain_rows(run, names, ALONE)
    _keep_winner(run, rows)


def _settle(run: Run) -> None:
    """Note what all rows have in common when the first begins; later, refuse what has changed.

    Raises:
        RunFolderError: A setting is another.
    """
    path, dumped = run.folder.retraining_settings, run.config.retrain.model_dump(mode="json")
    settings = {key: value for key, value in dumped.items() if key not in ROW_SETTINGS}
    if not path.exists():
        write_json(path, settings)
        return
    before = read_json(path, dict, "Delete it if nothing has changed since the retraining began.")
    for key in dict.fromkeys([*before, *settings]):
        if before.get(key) != settings.get(key):
            raise RunFolderError(
                f"the rows of a retraining must be trained alike, but retrain.{key} was {before.get(key)!r} and is "
                f"{settings.get(key)!r}. Undo the change, or delete {run.folder.retraining} to do all rows again."
            )


def retrain_rows(run: Run, names: Container[str], share: Share) -> None:
    """Do some rows of a run's table, in order.

    Args:
        run: The run.
        names: Which rows.
        share: What of the training is this process's; all processes call this alike.
    """
    rows = run.rows()
    total = sum(row.steps(run.config.retrain.epochs) for row in rows)
    before = 0
    for place, row in enumerate(rows):
        if row.name in names:
            title = f"row {place + 1} of {len(rows)} ({row.describe()}), " if len(rows) > 1 else ""
            _Training(run, row, share, title, before, total).do()
            # The others must not go on to what the first process may still have to end.
            share.wait_for_leader(row.name)
        before += row.steps(run.config.retrain.epochs)


class _Training:
    """One row: trained, saved, read back, measured."""

    def __init__(self, run: Run, row: Row, share: Share, title: str, before: int, total: int) -> None:
        self._run, self._row, self._share = run, row, share
        self._title, self._before, self._total = title, before, total
        self._files = row_folder(run.folder, row)

    def do(self) -> None:
        """Leave the files of the row; what of it was broken off starts anew, and gives the same again."""
        run, row, files = self._run, self._row, self._files
        if not self._share.leads:
            if row.trains:
                self._train()
            return
        module = self._train() if row.trains else self._inherit()
        save_tensors(files.model, module.state_dict(), {"format": "pt"})
        validation = self._measure(module, "validation")
        if not row.trains:
            self._tell(1, "the supernet's weights as they are")
        reloaded = build_subnet(run.components.space, row.architecture, run.config.seed)
        load_weights(reloaded, files.model)
        reloaded.to(run.config.training.device)
        again = self._measure(reloaded, "validation")
        if again != validation:
            raise RunError(
                f"the model saved in {files.model} must evaluate as it did when trained, {validation}, but gives "
                f"{again}. It has state that its state_dict does not hold."
            )
        scores = {
            "text": run.components.space.format(row.architecture),
            "trial": row.trial,
            "architecture": dict(row.architecture),
            "init": row.init,
            "seed": row.seed,
            "validation": validation,
            # The only time that it is touched.
            "test": self._measure(reloaded, "test"),
            "parameters": count_parameters(reloaded),
        }
        write_json(files.metrics, scores)

    def _inherit(self) -> nn.Module:
        run = self._run
        return Evaluator(run.supernet(), run.components.task, run.splits, run.config).subnet(self._row.architecture)

    def _train(self) -> nn.Module:
        run, row = self._run, self._row
        config, seed = run.config, seed_of(run.config.seed, row.seed)
        if row.init == "finetune":
            module: nn.Module = run.supernet().extract(row.architecture)
        else:
            module = build_subnet(run.components.space, row.architecture, seed)
        with self._log() as log:

            def on_epoch(record: EpochRecord) -> None:
                if log is not None:
                    log.append(vars(record))
                    self._tell(record.epoch + 1, f"loss {record.loss:.4f}")

            task, data, device = run.components.task, run.splits.train, config.training.device
            retrain(module, task, data, config.retrain, seed, device, on_epoch, self._share)
        return module

    def _log(self) -> contextlib.AbstractContextManager[JsonLines | None]:
        """Return a new log of the epochs, in the process that leads."""
        if not self._share.leads:
            return contextlib.nullcontext()
        with writing(self._files.epochs):
            self._files.epochs.unlink(missing_ok=True)
        return JsonLines(self._files.epochs)

    def _tell(self, steps: int, detail: str) -> None:
        self._run.watch(Progress("retrain", self._before + steps, self._total, f"{self._title}{detail}"))

    def _measure(self, module: nn.Module, split: str) -> dict[str, int | float]:
        run = self._run
        with calling(f"evaluating the retrained model on the {split} split", TrainingError):
            metrics = measure_split(
                module,
                run.components.task,
                getattr(run.splits, split),
                run.config.search.batch_size,
                run.config.training.device,
            )
        return read_metrics(metrics)


def _keep_winner(run: Run, rows: list[Row]) -> None:
    """Copy the files of the row that is best on the validation split; its metrics come last, and end the phase."""
    scores = run.retrained()
    winner, metric = choose_row(scores, run.components.objectives)
    files = RowFolder(run.folder.retraining / rows[scores.index(winner)].name)
    copy_file(files.model, run.folder.best_model)
    if files.epochs.exists():
        copy_file(files.epochs, run.folder.retraining_metrics)
    else:
        with writing(run.folder.retraining_metrics):
            run.folder.retraining_metrics.unlink(missing_ok=True)
    write_json(run.folder.best_metrics, BestScores(**winner.model_dump(), chosen_by=metric).model_dump())
