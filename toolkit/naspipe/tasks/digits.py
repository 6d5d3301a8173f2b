"""The digits task: 1,797 images of 8 x 8 pixels that scikit-learn ships."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path
from typing import Annotated, Any

import numpy as np
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
        table = _read_table()
        inputs = torch.from_numpy(table[:, :-1].reshape(-1, 8, 8)).float().unsqueeze(1) / 8 - 1
        targets = torch.from_numpy(table[:, -1]).long()
        return split_tensors(inputs, targets, seed, validation=self.validation, test=self.test)


def _read_table() -> np.ndarray[Any, Any]:
    """Return scikit-learn's table of digits: (1797, 65), 64 pixels in [0, 16] and the class.

    Importing ``sklearn.datasets`` takes every process of a run more than a second, so its file is read where it lies.
    """
    spec = importlib.util.find_spec("sklearn")
    for folder in (spec.submodule_search_locations if spec is not None else None) or []:
        path = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            with gzip.open(path, "rt", encoding="utf-8") as file:
                return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    digits = load_digits()
    return np.column_stack([digits.data, digits.target])
