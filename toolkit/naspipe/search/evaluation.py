"""Evaluation: the metrics of one subnet, on a copy of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from naspipe.config.schema import RunConfig
from naspipe.errors import TaskError
from naspipe.keys import derive_key
from naspipe.search.objective import PARAMETERS
from naspipe.space import Architecture
from naspipe.supernet.normalization import calibrate_statistics
from naspipe.supernet.supernet import Supernet
from naspipe.tasks.data import Dataset, EpochOrder, Splits, move_batch
from naspipe.tasks.task import Task
from naspipe.training.determinism import seed_generators


class Evaluator:
    """Evaluates subnets of a supernet on the validation split; the supernet is left as it is."""

    def __init__(self, supernet: Supernet, task: Task, splits: Splits, config: RunConfig) -> None:
        """Draw the batches that calibrate normalisation, the same ones for every subnet.

        Args:
            supernet: A trained one.
            task: Gives loss and metrics.
            splits: Training data calibrates, validation data measures; the test split is not touched.
            config: Gives batch size, calibration batches, device and seed.
        """
        self._supernet = supernet
        self._task = task
        self._validation = splits.validation
        self._config = config
        order = EpochOrder(splits.train, config.search.batch_size, config.seed, "calibration")
        self._calibration = [
            move_batch(order.batch(index), config.training.device).inputs
            for index in range(config.search.calibration_batches)
        ]

    def subnet(self, architecture: Architecture) -> nn.Module:
        """Return a copy of a subnet with the supernet's weights, calibrated and in evaluation mode."""
        subnet = self._supernet.extract(architecture)
        seed_generators(derive_key(self._config.seed, "evaluate"))
        calibrate_statistics(subnet, self._calibration)
        return subnet

    def evaluate(self, architecture: Architecture) -> dict[str, object]:
        """Return the metrics of an architecture with the supernet's weights, and its parameters.

        The same architecture gives the same metrics, whatever was evaluated before.
        """
        subnet = self.subnet(architecture)
        metrics = measure_split(
            subnet,
            self._task,
            self._validation,
            self._config.search.batch_size,
            self._config.training.device,
        )
        return {**metrics, PARAMETERS: count_parameters(subnet)}


def measure_split(module: nn.Module, task: Task, dataset: Dataset, batch_size: int, device: str) -> Mapping[str, Any]:
    """Return a module's metrics on a split, in evaluation mode.

    Args:
        module: An ordinary module, on ``device``; put into evaluation mode.
        task: Gives loss and metrics.
        dataset: The split, in its own order.
        batch_size: Samples in a batch.
        device: Where the batches go.
    """
    module.eval()
    totals: dict[str, float] = {"loss": 0.0, "weight": 0.0}
    with torch.no_grad():
        for start in range(0, len(dataset), batch_size):
            indices = range(start, min(start + batch_size, len(dataset)))
            batch = move_batch(dataset.batch(indices, key=0), device)
            outputs = module(batch.inputs)
            add_measures(totals, task, outputs, batch.targets)
            add_sums(totals, task.measure_module(module, batch, dataset, start), task, "measure_module")
    return as_mapping(task.metrics(totals), task, "metrics")


def add_measures(totals: dict[str, float], task: Task, outputs: Any, targets: Any) -> None:
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


def count_parameters(module: nn.Module) -> int:
    """Return the number of scalar parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())
