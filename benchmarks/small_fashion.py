"""Fashion-MNIST with fewer pixels, on which benchmarks/supernets.py trains in less time."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch.nn import functional as F

import naspipe
from naspipe.tasks.fashion_mnist import FashionMNIST


class SmallFashionMNIST(FashionMNIST):
    """Fashion-MNIST with fewer pixels: the mean of squares of ``shrink`` by ``shrink``."""

    def __init__(self, shrink: Annotated[int, Field(ge=1)], train_samples: Annotated[int, Field(ge=1)]) -> None:
        """Choose the size; a twentieth of the training images is for validation."""
        super().__init__(validation=0.05, train_samples=train_samples)
        self.shrink = shrink

    def load(self, seed: int) -> naspipe.Splits:
        """Return inputs (samples, 1, 28 / shrink, 28 / shrink) and targets (samples,)."""
        splits = super().load(seed)
        return naspipe.Splits(*(self._shrunk(split) for split in (splits.train, splits.validation, splits.test)))

    def _shrunk(self, split: naspipe.Dataset) -> naspipe.TensorDataset:
        whole = split.batch(range(len(split)), key=0)
        return naspipe.TensorDataset(F.avg_pool2d(whole.inputs, self.shrink), whole.targets)
