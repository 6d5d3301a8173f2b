"""Data sets of torchvision, such as CIFAR-10; torchvision is an optional dependency."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from naspipe.errors import TaskError
from naspipe.tasks.classification import ClassificationTask
from naspipe.tasks.data import Splits
from naspipe.tasks.images import (
    Augmentation,
    Fraction,
    Images,
    Normalisation,
    Pixels,
    PositiveInt,
    require_trained_classes,
    split_images,
)
from naspipe.wording import nearest


class TorchvisionData(ClassificationTask):
    """A labelled data set of torchvision with a test set and images of one size: CIFAR10, SVHN, KMNIST, ..."""

    def __init__(
        self,
        dataset: str,
        folder: str,
        download: bool = False,
        validation: Fraction = 0.1,
        train_samples: PositiveInt | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        crop: Pixels = 0,
        flip: bool = False,
    ) -> None:
        """Choose the data.

        Args:
            dataset: Name of a class in torchvision.datasets, such as CIFAR10.
            folder: The folder of torchvision's files.
            download: Whether torchvision may download missing files.
            validation: Fraction of the training images for validation, which the search uses.
            train_samples: Number of images to train on; by default all.
            mean: Subtracted from pixels in [0, 1]: a number for each channel, or one for all; 0.5 by default.
            std: Divides the pixels after that: a number for each channel, or one for all; 0.5 by default.
            crop: Pixels of black around a training image, out of which a random crop of its size is taken; 0: no crop.
            flip: Whether to mirror half of the training images.
        """
        self.dataset = dataset
        self.folder = Path(folder)
        self.download = download
        self.validation = validation
        self.train_samples = train_samples
        self.mean, self.std = mean, std
        self.augmentation = Augmentation(crop, flip)

    def load(self, seed: int) -> Splits:
        """Return inputs (samples, channels, height, width) and targets (samples,), as the data set has them."""
        make = self._find()
        train, test = (self._read(make, training) for training in (True, False))
        splits = split_images(
            train,
            test,
            seed,
            Normalisation.of(self.mean, self.std, train.pixels.shape[1]),
            self.augmentation,
            validation=self.validation,
            train_samples=self.train_samples,
        )
        require_trained_classes(splits)
        return splits

    def _find(self) -> Callable[..., Any]:
        """Return the data set's class.

        Raises:
            TaskError: torchvision cannot be imported, or has no such data set.
        """
        try:
            known = importlib.import_module("torchvision.datasets")
        except (ImportError, RuntimeError, OSError) as error:
            # A build for another version of torch raises RuntimeError or OSError.
            raise TaskError(
                f"the task torchvision needs torchvision, which cannot be imported: {error}. Install the version that "
                f"belongs to torch {torch.__version__}: pip install 'naspipe[vision]'."
            ) from error
        found = getattr(known, self.dataset, None)
        if not callable(found):
            names = [name for name, value in vars(known).items() if inspect.isclass(value)]
            raise TaskError(
                f"dataset must be a class of torchvision.datasets, but is {self.dataset!r}."
                f"{nearest(self.dataset, names)}"
            )
        make: Callable[..., Any] = found
        return make

    def _read(self, make: Callable[..., Any], training: bool) -> Images:
        """Read the training or the test set.

        Raises:
            TaskError: It is missing, or has no split, images or classes that this task can use.
        """
        takes = inspect.signature(make).parameters
        if "train" in takes:
            choice: dict[str, Any] = {"train": training}
        elif "split" in takes:
            choice = {"split": "train" if training else "test"}
        else:
            raise TaskError(
                f"dataset must have a training and a test set, so that its class takes train= or split=, but "
                f"{self.dataset} takes {', '.join(takes)}."
            )
        if self.download:
            choice["download"] = True
        part = ", ".join(f"{key}={value!r}" for key, value in choice.items())
        try:
            samples = make(str(self.folder), **choice)
        except (RuntimeError, ValueError, OSError, TypeError) as error:
            reason = str(error).rstrip(".")
            raise TaskError(
                f"torchvision.datasets.{self.dataset}({str(self.folder)!r}, {part}) failed: {reason}. Put its files "
                "into task.folder, or set task.download=true."
            ) from error
        return self._stack(samples)

    def _stack(self, samples: Any) -> Images:
        arrays: list[np.ndarray[Any, Any]] = []
        targets: list[int] = []
        for place in range(len(samples)):
            image, target = samples[place]
            array = np.asarray(image)
            if array.dtype != np.uint8 or array.ndim not in (2, 3) or (arrays and array.shape != arrays[0].shape):
                raise TaskError(
                    f"{self.dataset} must have images of 8 bits a channel, all of one size, but image {place} has "
                    f"shape {array.shape} and type {array.dtype}"
                    f"{f' and the first has shape {arrays[0].shape}' if arrays else ''}. "
                    "Use the task image_folder, which scales image files to one size."
                )
            if not isinstance(target, (int, np.integer)):
                raise TaskError(
                    f"{self.dataset} must have a class for each image, a whole number, but image {place} has "
                    f"{target!r}."
                )
            arrays.append(array)
            targets.append(int(target))
        if not arrays:
            raise TaskError(f"{self.dataset} in {self.folder} must have images, but has none.")
        pixels = torch.from_numpy(np.stack(arrays))
        # (N, H, W) or (N, H, W, C)
        pixels = pixels.unsqueeze(1) if pixels.dim() == 3 else pixels.permute(0, 3, 1, 2).contiguous()
        return Images(pixels, torch.tensor(targets))
