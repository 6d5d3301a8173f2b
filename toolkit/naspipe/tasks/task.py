"""Task: data, loss and metrics; what the supernet is trained for and the search looks at."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from naspipe.records import Direction as Direction
from naspipe.tasks.data import Batch, Dataset, Splits


class Task(ABC):
    """Data splits, loss and metrics.

    Call order: ``load`` once per process, before anything else; then the other methods with targets of
    its splits, in any order. None of them may change the task. Tensors are on the run's device.
    """

    @abstractmethod
    def load(self, seed: int) -> Splits:
        """Return the data, split by seed.

        Args:
            seed: The run's seed; the same seed gives the same splits.

        Raises:
            TaskError: The data is missing or malformed.
        """

    @abstractmethod
    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """Return the summed loss over the samples, as a scalar.

        Summed and not averaged, so that micro-batches add up: the runtime divides by ``weight`` of the
        whole batch.
        """

    @abstractmethod
    def weight(self, targets: Any) -> float:
        """Return what the summed loss is divided by: the number of samples, or of tokens."""

    @abstractmethod
    def measure(self, outputs: Any, targets: Any) -> Mapping[str, float]:
        """Return sums over the samples of whatever ``metrics`` needs, besides loss and weight."""

    def measure_module(self, module: nn.Module, batch: Batch, dataset: Dataset, start: int) -> Mapping[str, float]:
        """Return further sums, from running a module as the task likes; by default none.

        For what its outputs on a batch's inputs do not show, such as the quality of what a model writes when nobody
        gives it the right words so far. Called in evaluation mode and without gradients, once for each batch that
        ``measure`` is called for; the sums are added up with those of ``measure``, under names of their own.

        Args:
            module: The module that is evaluated; it must be left as it is.
            batch: Samples of a split that follow each other.
            dataset: The split, as ``load`` returned it; it may know more of its samples than a batch shows.
            start: Place in the split of the batch's first sample; by it a task can do with some samples only.
        """
        return {}

    @abstractmethod
    def metrics(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        """Turn sums over a split into metrics.

        Args:
            totals: The sums of ``measure`` and ``measure_module`` over all batches, and of ``loss`` and ``weight``.
        """

    @property
    @abstractmethod
    def directions(self) -> Mapping[str, Direction]:
        """The metrics that can be objectives of a search, and which way is better."""
