"""Classification: cross-entropy and accuracy; a subclass adds the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from naspipe.tasks.task import Direction, Task


class ClassificationTask(Task):
    """A task whose outputs are logits and whose targets are class indices.

    Shapes: outputs (samples, classes), targets (samples,). A subclass implements ``load``.
    """

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """Return the summed cross-entropy, in nats."""
        return F.cross_entropy(outputs, targets, reduction="sum")

    def weight(self, targets: Any) -> float:
        """Return the number of samples."""
        return float(len(targets))

    def measure(self, outputs: Any, targets: Any) -> Mapping[str, float]:
        """Return the number of correct samples."""
        return {"correct": float((outputs.argmax(dim=1) == targets).sum().item())}

    def metrics(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        """Return accuracy, in [0, 1], and mean loss, in nats."""
        return {
            "accuracy": totals["correct"] / totals["weight"],
            "loss": totals["loss"] / totals["weight"],
        }

    @property
    def directions(self) -> Mapping[str, Direction]:
        """Accuracy is better when larger, loss when smaller."""
        return {"accuracy": "maximize", "loss": "minimize"}
