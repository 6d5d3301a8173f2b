"""Evaluation: the metrics of one subnet, on a copy of its weights."""

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
        """Draw the batches that calibrate normalisation, the same ones for every module.

        Args:
            task: Gives loss and metrics.
            splits: Training data calibrates, validation data measures; the test split is not touched.
            config: Gives batch size, calibration batches, device and seed.
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
        """Set the statistics of a module's normalisations, and put it into evaluation mode."""
        seed_generators(derive_key(self._config.seed, "evaluate"))
        calibrate_statistics(module, self._calibration)

    def evaluate(self, module: nn.Module) -> dict[str, object]:
        """Return the task's metrics of a module, which is calibrated.

        Where it has normalisations with statistics, also ``uncalibrated_NAME``: what the metrics are when each batch
        is normalised by itself, as while the supernet trains. They are of whole batches, for one sample has no
        statistics.

        The same module gives the same metrics, whatever was evaluated before.
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
    """Evaluates subnets of a supernet; the supernet is left as it is."""

    def __init__(self, supernet: Supernet, task: Task, splits: Splits, config: RunConfig) -> None:
        """Prepare for a trained supernet; the rest is as for ``ModuleEvaluator``."""
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
        module: An ordinary module, on ``device``; put into evaluation mode.
        task: Gives loss and metrics.
        dataset: The split, in its own order.
        batch_size: Samples in a batch.
        device: Where the batches go.
        samples: How many to measure, from the first on; by default all.
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
    """Add loss, weight and measures of some samples to the sums."""
    totals["loss"] += float(task.loss(outputs, targets).item())
    totals["weight"] += task.weight(targets)
    add_sums(totals, task.measure(outputs, targets), task, "measure")


def add_sums(totals: dict[str, float], sums: object, task: Task, method: str) -> None:
    """Add what a task's method returned for some samples to the sums.

    Raises:
        TaskError: It is no mapping.
    """
    for name, value in as_mapping(sums, task, method).items():
        totals[name] = totals.get(name, 0.0) + value


def as_mapping(value: object, task: Task, method: str) -> Mapping[str, Any]:
    """Return what a task's method returned, if it is a mapping.

    Raises:
        TaskError: It is none.
    """
    if not isinstance(value, Mapping):
        raise TaskError(
            f"{type(task).__name__}.{method} must return a mapping from names to numbers, but returned "
            f"{value!r} of type {type(value).__name__}."
        )
    return value
