"""Task: the data, loss and metrics of training and search."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from naspipe.records import Direction as Direction
from naspipe.tasks.data import Batch, Dataset, Splits


class Task(ABC):
    """Data splits, loss and metrics.

    Call order: ``load`` first, once in each process; then the other methods, in any order, with targets of its splits.
    These must not change the task. Their tensors are on the run's device.
    """

    @abstractmethod
    def load(self, seed: int) -> Splits:
        """Return the data in three splits.

        Args:
            seed: The run's seed; an equal seed must give equal splits.

        Raises:
            TaskError: The data is missing or malformed.
        """

    @abstractmethod
    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """Return the sum of the loss over the samples, as a scalar.

        It must be a sum, not a mean, so that micro-batches add up: the runtime divides by the ``weight`` of the whole
        batch.
        """

    @abstractmethod
    def weight(self, targets: Any) -> float:
        """Return the divisor of the summed loss: the number of samples, or of tokens."""

    @abstractmethod
    def measure(self, outputs: Any, targets: Any) -> Mapping[str, float]:
        """Return sums over the samples that ``metrics`` needs besides loss and weight."""

    def measure_module(self, module: nn.Module, batch: Batch, dataset: Dataset, start: int) -> Mapping[str, float]:
        """Return further sums over the samples, for metrics that need the module itself; by default none.

        An example is the quality of a translation that the module writes token by token. The method is called in
        evaluation mode and without gradients, once for every batch of an evaluation. Its sums need names that
        ``measure`` does not use.

        Args:
            module: The evaluated module; it must not be changed.
            batch: Consecutive samples of a split.
            dataset: The split, as ``load`` returned it; it may have more data about its samples than a batch.
            start: Index of the batch's first sample in the split, so that a task can use some samples only.
        """
        return {}

    @abstractmethod
    def metrics(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        """Compute metrics from sums over a split.

        Args:
            totals: The sums of ``measure`` and ``measure_module`` over all batches, and the sums of ``loss`` and
                ``weight`` under these names.
        """

    @property
    @abstractmethod
    def directions(self) -> Mapping[str, Direction]:
        """The metrics that can be objectives of a search, each with ``maximize`` or ``minimize``."""
