"""Evaluation: the metrics of a subnet, from a copy of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from naspipe.config.schema import RunConfig
from naspipe.errors import TaskError
from naspipe.keys import derive_key
from naspipe.space import Architecture
from naspipe.supernet.determinism import seed_generators
from naspipe.supernet.normalization import (
    calibrate_statistics,
    drop_statistics,
    has_statistics,
    restore_statistics,
)
from naspipe.supernet.supernet import Supernet
from naspipe.tasks.data import Dataset, EpochOrder, Splits, move_batch
from naspipe.tasks.task import Task


class ModuleEvaluator:
    """Evaluates ordinary modules on the validation split."""

    def __init__(self, task: Task, splits: Splits, config: RunConfig) -> None:
        """Draw the batches that calibrate normalisation, the same for every module.

        Args:
            task: Gives loss and metrics.
            splits: Training data for calibration, validation data for the metrics; the test split is not used.
            config: Gives batch size, number of calibration batches, device and seed.
        """
        self._task = task
        self._validation = splits.validation
        self._config = config
        order = EpochOrder(splits.train, config.search.batch_size, config.seed, "calibration")
        self._calibration = [
            move_batch(order.batch(index), config.training.device).inputs
            for index in range(config.search.calibration_batches)
        ]

    def calibrate(self, module: nn.Module) -> None:
        """Calibrate the normalisations of a module, and put it into evaluation mode."""
        seed_generators(derive_key(self._config.seed, "evaluate"))
        calibrate_statistics(module, self._calibration)

    def evaluate(self, module: nn.Module) -> dict[str, object]:
        """Calibrate a module, and return the task's metrics of it.

        If it has normalisations with running statistics, the metrics ``uncalibrated_NAME`` are added: those with the
        statistics of each batch, as in supernet training. They leave out an incomplete last batch, since a single
        sample has no statistics.

        Earlier evaluations do not change the result.
        """
        uncalibrated: Mapping[str, Any] = {}
        if has_statistics(module):
            drop_statistics(module)
            uncalibrated = self._measure(module, whole_batches=True)
            restore_statistics(module)
        self.calibrate(module)
        metrics = self._measure(module)
        return {**metrics, **{f"uncalibrated_{name}": value for name, value in uncalibrated.items()}}

    def _measure(self, module: nn.Module, whole_batches: bool = False) -> Mapping[str, Any]:
        batch_size, samples = self._config.search.batch_size, len(self._validation)
        if whole_batches and samples > batch_size:
            samples -= samples % batch_size
        seed_generators(derive_key(self._config.seed, "evaluate"))
        device = self._config.training.device
        return measure_split(module, self._task, self._validation, batch_size, device, samples)


class Evaluator:
    """Evaluates subnets of a supernet; the supernet is not changed."""

    def __init__(self, supernet: Supernet, task: Task, splits: Splits, config: RunConfig) -> None:
        """Prepare for a trained supernet; the other arguments are those of ``ModuleEvaluator``."""
        self._supernet = supernet
        self._modules = ModuleEvaluator(task, splits, config)

    def subnet(self, architecture: Architecture) -> nn.Module:
        """Return a copy of a subnet with the supernet's weights, calibrated and in evaluation mode."""
        subnet = self._supernet.extract(architecture)
        self._modules.calibrate(subnet)
        return subnet

    def evaluate(self, architecture: Architecture) -> dict[str, object]:
        """Return the task's metrics of an architecture with the supernet's weights."""
        return self._modules.evaluate(self._supernet.extract(architecture))


def measure_split(
    module: nn.Module, task: Task, dataset: Dataset, batch_size: int, device: str, samples: int | None = None
) -> Mapping[str, Any]:
    """Return a module's metrics on a split, in evaluation mode.

    Args:
        module: An ordinary module on ``device``; it is put into evaluation mode.
        task: Gives loss and metrics.
        dataset: The split, in its own order.
        batch_size: Samples in a batch.
        device: ``cpu`` or ``cuda``.
        samples: Number of samples, from the first on; by default all.
    """
    samples = len(dataset) if samples is None else samples
    module.eval()
    totals: dict[str, float] = {"loss": 0.0, "weight": 0.0}
    with torch.no_grad():
        for start in range(0, samples, batch_size):
            indices = range(start, min(start + batch_size, samples))
            batch = move_batch(dataset.batch(indices, key=0), device)
            outputs = module(batch.inputs)
            add_batch_sums(totals, task, outputs, batch.targets)
            add_sums(totals, task.measure_module(module, batch, dataset, start), task, "measure_module")
    return as_mapping(task.metrics(totals), task, "metrics")


def add_batch_sums(totals: dict[str, float], task: Task, outputs: Any, targets: Any) -> None:
    """Add loss and weight of a batch, and the task's sums for its metrics, to the totals."""
    totals["loss"] += float(task.loss(outputs, targets).item())
    totals["weight"] += task.weight(targets)
    add_sums(totals, task.measure(outputs, targets), task, "measure")


def add_sums(totals: dict[str, float], sums: object, task: Task, method: str) -> None:
    """Add the result of a task's method to the totals.

    Raises:
        TaskError: The result is not a mapping.
    """
    for name, value in as_mapping(sums, task, method).items():
        totals[name] = totals.get(name, 0.0) + value


def as_mapping(value: object, task: Task, method: str) -> Mapping[str, Any]:
    """Return the result of a task's method, if it is a mapping.

    Raises:
        TaskError: It is not a mapping.
    """
    if not isinstance(value, Mapping):
        raise TaskError(
            f"{type(task).__name__}.{method} must return a mapping from names to numbers, but returned "
            f"{value!r} of type {type(value).__name__}."
        )
    return value
