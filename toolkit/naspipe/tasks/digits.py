"""The digits task: 1,797 images of 8 x 8 pixels that scikit-learn ships."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

from naspipe.tasks.classification import ClassificationTask
from naspipe.tasks.data import Splits, split_tensors

Fraction = Annotated[float, Field(gt=0, lt=1)]


class Digits(ClassificationTask):
    """Hand-written digits, 8 x 8 pixels, 10 classes, from scikit-learn; needs no download."""

    def __init__(self, validation: Fraction = 0.2, test: Fraction = 0.2) -> None:
        """Choose the sizes of the splits.

        Args:
            validation: Fraction of the 1,797 images that the search looks at.
            test: Fraction of the images for the final test.
        """
        self.validation = validation
        self.test = test

    def load(self, seed: int) -> Splits:
        """Return inputs (samples, 1, 8, 8) in [-1, 1] and targets (samples,) in [0, 10)."""
        from sklearn.datasets import load_digits

        data = load_digits()
        inputs = torch.from_numpy(data.images).float().unsqueeze(1) / 8 - 1
        targets = torch.from_numpy(data.target).long()
        return split_tensors(inputs, targets, seed, validation=self.validation, test=self.test)
