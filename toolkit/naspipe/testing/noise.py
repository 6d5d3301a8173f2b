"""Noise: a random task, for checks of a space that has no task yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor
from torch.utils import _pytree as pytree  # as in tasks.data

from naspipe.tasks.data import Splits, split_tensors
from naspipe.tasks.task import Direction, Task

PositiveInt = Annotated[int, Field(ge=1)]


class Noise(Task):
    """Random inputs of a shape; the loss pulls outputs of any shape towards 1."""

    def __init__(self, shape: list[PositiveInt], tokens: PositiveInt | None = None, samples: PositiveInt = 60) -> None:
        """Describe the inputs.

        Args:
            shape: The shape of one sample.
            tokens: The inputs are integers below this number; by default they are normally distributed floats.
            samples: Number of samples of all splits together.
        """
        self.shape = tuple(shape)
        self.tokens = tokens
        self.samples = samples

    def load(self, seed: int) -> Splits:
        """Return inputs (samples, *shape) and targets of ones (samples,)."""
        generator = torch.Generator().manual_seed(seed)
        size = (self.samples, *self.shape)
        if self.tokens is None:
            inputs = torch.randn(size, generator=generator)
        else:
            inputs = torch.randint(self.tokens, size, generator=generator)
        return split_tensors(inputs, torch.ones(self.samples), seed, validation=0.2, test=0.2)

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """Return the summed squared distance of every output from 1."""
        leaves = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        return torch.stack([(leaf - 1).square().sum() for leaf in leaves]).sum()

    def weight(self, targets: Any) -> float:
        """Return the number of samples."""
        return float(len(targets))

    def measure(self, outputs: Any, targets: Any) -> Mapping[str, float]:
        """Return no further sums."""
        return {}

    def metrics(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        """Return the mean loss."""
        return {"loss": totals["loss"] / totals["weight"]}

    @property
    def directions(self) -> Mapping[str, Direction]:
        """Loss is better when smaller."""
        return {"loss": "minimize"}
