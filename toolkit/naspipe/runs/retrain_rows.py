"""Rows of the retraining table: each is trained, saved, read back and measured."""

from __future__ import annotations

import contextlib
from collections.abc import Container

from torch import nn

from naspipe.errors import RunError, TrainingError
from naspipe.files import JsonLines, save_tensors, write_json, writing
from naspipe.results.retraining_rows import RetrainingRow, row_folder, seed_of
from naspipe.results.view import RunView, load_weights
from naspipe.search.builtin_measures import count_parameters
from naspipe.search.evaluation import Evaluator, measure_split
from naspipe.search.objective import read_metrics
from naspipe.supernet.supernet import build_subnet
from naspipe.training.progress import Progress, Watch
from naspipe.training.standalone import EpochRecord, SingleProcess, retrain
from naspipe.usercode import calling


def retrain_rows(view: RunView, names: Container[str], process: SingleProcess, watch: Watch) -> None:
    """Train some rows of a run's table, in order.

    Args:
        view: The run; this process, or the process that started it, holds the run's lock.
        names: Names of the rows.
        process: This process; all processes make the same call.
        watch: Called with the progress.
    """
    rows = view.rows()
    total = sum(row.steps(view.config.retrain.epochs) for row in rows)
    before = 0
    for place, row in enumerate(rows):
        if row.name in names:
            title = f"row {place + 1} of {len(rows)} ({row.describe()}), " if len(rows) > 1 else ""
            _RowTraining(view, row, process, watch, title, before, total).do()
            # The others must not begin the next row before the leading process has ended this one.
            process.wait_for_leader(row.name)
        before += row.steps(view.config.retrain.epochs)


class _RowTraining:
    """One row: trained, saved, read back, measured."""

    def __init__(
        self,
        view: RunView,
        row: RetrainingRow,
        process: SingleProcess,
        watch: Watch,
        title: str,
        before: int,
        total: int,
    ) -> None:
        self._view, self._row, self._process, self._watch = view, row, process, watch
        self._title, self._before, self._total = title, before, total
        self._files = row_folder(view.folder, row)

    def do(self) -> None:
        """Get the module, save it, read it back and measure it; an interrupted row starts again."""
        view, row, files = self._view, self._row, self._files
        if not self._process.leads:
            if row.trains:
                self._train()
            return
        module = self._train() if row.trains else self._inherit()
        save_tensors(files.model, module.state_dict(), {"format": "pt"})
        validation = self._measure(module, "validation")
        if not row.trains:
            self._tell(1, "the supernet's weights as they are")
        reloaded = build_subnet(view.components.space, row.architecture, view.config.seed)
        load_weights(reloaded, files.model)
        reloaded.to(view.config.training.device)
        again = self._measure(reloaded, "validation")
        if again != validation:
            raise RunError(
                f"the model saved in {files.model} must evaluate as it did when trained, {validation}, but gives "
                f"{again}. It has state that its state_dict does not hold."
            )
        scores = {
            "text": view.components.space.format(row.architecture),
            "trial": row.trial,
            "architecture": dict(row.architecture),
            "init": row.init,
            "seed": row.seed,
            "validation": validation,
            # The only use of the test split.
            "test": self._measure(reloaded, "test"),
            "parameters": count_parameters(reloaded),
        }
        write_json(files.metrics, scores)

    def _inherit(self) -> nn.Module:
        view = self._view
        evaluator = Evaluator(view.shared_supernet(), view.components.task, view.splits, view.config)
        return evaluator.subnet(self._row.architecture)

    def _train(self) -> nn.Module:
        view, row = self._view, self._row
        config, seed = view.config, seed_of(view.config.seed, row.seed)
        if row.init == "finetune":
            module: nn.Module = view.shared_supernet().extract(row.architecture)
        else:
            module = build_subnet(view.components.space, row.architecture, seed)
        with self._log() as log:

            def on_epoch(record: EpochRecord) -> None:
                if log is not None:
                    log.append(vars(record))
                    self._tell(record.epoch + 1, f"loss {record.loss:.4f}")

            task, data, device = view.components.task, view.splits.train, config.training.device
            retrain(module, task, data, config.retrain, seed, device, on_epoch, self._process)
        return module

    def _log(self) -> contextlib.AbstractContextManager[JsonLines | None]:
        """Return a new log of the epochs, in the process that leads."""
        if not self._process.leads:
            return contextlib.nullcontext()
        with writing(self._files.epochs):
            self._files.epochs.unlink(missing_ok=True)
        return JsonLines(self._files.epochs)

    def _tell(self, steps: int, detail: str) -> None:
        self._watch(Progress("retrain", self._before + steps, self._total, f"{self._title}{detail}"))

    def _measure(self, module: nn.Module, split: str) -> dict[str, int | float]:
        view = self._view
        with calling(f"evaluating the retrained model on the {split} split", TrainingError):
            metrics = measure_split(
                module,
                view.components.task,
                getattr(view.splits, split),
                view.config.search.batch_size,
                view.config.training.device,
            )
        return read_metrics(metrics)
