"""Images as bytes: cropped, mirrored and normalised when a batch is made.

Shapes: N samples, C channels, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from naspipe.errors import TaskError
from naspipe.keys import derive_key, draw_permutation, keyed_random
from naspipe.tasks.data import Batch, Splits

Fraction = Annotated[float, Field(gt=0, lt=1)]
Pixels = Annotated[int, Field(ge=0)]
PositiveInt = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class Images:
    """Labelled images, or a selection of them.

    Attributes:
        pixels: (all, C, H, W), uint8; selections share it.
        targets: (all,), int64: the classes.
        places: (N,), int64: indices of the selected images; None: all.
    """

    pixels: Tensor
    targets: Tensor
    places: Tensor | None = None

    def __len__(self) -> int:
        return len(self.targets if self.places is None else self.places)

    def take(self, indices: Sequence[int]) -> Images:
        """Select some of these images; no pixels are copied."""
        return Images(self.pixels, self.targets, self._places(indices))

    def get(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return pixels (n, C, H, W), uint8, and targets (n,) of some of these images."""
        places = self._places(indices)
        return self.pixels[places], self.targets[places]

    def _places(self, indices: Sequence[int]) -> Tensor:
        places = torch.as_tensor(indices, dtype=torch.long)
        return places if self.places is None else self.places[places]


@dataclass(frozen=True)
class Normalisation:
    """A fixed mean and standard deviation of each channel, for pixels in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, mean: Sequence[float] | None, std: Sequence[float] | None, channels: int) -> Normalisation:
        """Return the normalisation that parameters describe; by default 0.5 everywhere, so pixels are in [-1, 1].

        Raises:
            TaskError: There is neither one number nor one for each channel, or a deviation is not above 0.
        """
        return cls(_per_channel("mean", mean, channels), _per_channel("std", std, channels))

    def apply(self, pixels: Tensor) -> Tensor:
        """Return pixels (N, C, H, W), uint8, as floats."""
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (self.mean, self.std))
        return pixels.float().div_(255).sub_(mean).div_(std)


def _per_channel(name: str, values: Sequence[float] | None, channels: int) -> tuple[float, ...]:
    if values is None:
        return (0.5,) * channels
    if len(values) not in (1, channels):
        raise TaskError(
            f"{name} must have one number for each of the {channels} channels, or one for all, but is {list(values)}."
        )
    if name == "std" and not all(value > 0 for value in values):
        raise TaskError(f"std must be above 0, but is {list(values)}.")
    return tuple(values) if len(values) == channels else (values[0],) * channels


@dataclass(frozen=True)
class Augmentation:
    """Random changes of training images.

    Attributes:
        crop: Pixels of black that are added on each side before a random crop of the image's size; 0: no crop.
        flip: Whether half of the images are mirrored, left to right.
    """

    crop: int = 0
    flip: bool = False

    def apply(self, pixels: Tensor, key: int) -> Tensor:
        """Return images (N, C, H, W) cropped and mirrored, each by its own draws from ``key``."""
        count, channels, height, width = pixels.shape
        rows = torch.arange(height).expand(count, height)
        columns = torch.arange(width).expand(count, width)
        # Each setting has a key, so that it does not change the draws of the other.
        if self.flip:
            mirrored = torch.rand(count, 1, generator=_generator(key, "flip")) < 0.5
            columns = torch.where(mirrored, columns.flip(1), columns)
        if self.crop:
            shift = torch.randint(2 * self.crop + 1, (2, count, 1), generator=_generator(key, "crop"))
            pixels = F.pad(pixels, (self.crop,) * 4)
            rows, columns = rows + shift[0], columns + shift[1]
        samples, depth = torch.arange(count), torch.arange(channels)
        return pixels[
            samples[:, None, None, None], depth[None, :, None, None], rows[:, None, :, None], columns[:, None, None, :]
        ]


def _generator(key: int, purpose: str) -> torch.Generator:
    return torch.Generator().manual_seed(derive_key(key, purpose))


class ImageDataset:
    """One split of labelled images."""

    def __init__(self, images: Images, normalisation: Normalisation, augmentation: Augmentation | None = None) -> None:
        """Describe a split; no pixels are copied.

        Args:
            images: The images of the split.
            normalisation: Applied to every batch.
            augmentation: Applied before the normalisation; None for validation and test.
        """
        self._images = images
        self._normalisation = normalisation
        self._augmentation = augmentation

    def __len__(self) -> int:
        return len(self._images)

    @property
    def classes(self) -> set[int]:
        """The classes of its images."""
        images = self._images
        return set((images.targets if images.places is None else images.targets[images.places]).tolist())

    def batch(self, indices: Sequence[int], key: int) -> Batch:
        """Return images (n, C, H, W), float32, and classes (n,); augmentation draws from ``key`` alone."""
        pixels, targets = self._images.get(indices)
        if self._augmentation is not None and self._augmentation != Augmentation():
            pixels = self._augmentation.apply(pixels, key)
        return Batch(self._normalisation.apply(pixels), targets)


def split_images(
    train: Images,
    test: Images,
    seed: int,
    normalisation: Normalisation,
    augmentation: Augmentation,
    *,
    validation: float,
    train_samples: int | None,
) -> Splits:
    """Split a data set's training images into training and validation; the test images stay as they are.

    Args:
        train: The training images of the data set.
        test: The test images of the data set.
        seed: Decides which training images are for validation.
        normalisation: Applied in all splits.
        augmentation: Applied in the training split.
        validation: Fraction of the training images for validation, in (0, 1).
        train_samples: Number of images to train on; None: all that are not for validation.

    Raises:
        TaskError: A split would be empty, or there are fewer images than ``train_samples``.
    """
    count = len(train)
    order = draw_permutation(keyed_random(seed, "split"), count)
    num_validation = round(count * validation)
    rest = order[num_validation:]
    if not num_validation or not rest or not len(test):
        raise TaskError(
            f"every split must have images, but there are {count} for training and validation, of which validation "
            f"takes {validation}, and {len(test)} for the test. Choose another fraction, or give more images."
        )
    if train_samples is not None and train_samples > len(rest):
        raise TaskError(
            f"train_samples must be at most {len(rest)}, the images that validation leaves, but is {train_samples}."
        )
    # Sorted, so that the order of the draws does not matter.
    return Splits(
        ImageDataset(train.take(sorted(rest[:train_samples])), normalisation, augmentation),
        ImageDataset(train.take(sorted(order[:num_validation])), normalisation),
        ImageDataset(test, normalisation),
    )


def require_trained_classes(splits: Splits) -> None:
    """Raise an error if the training split lacks a class of the validation or test split.

    Raises:
        TaskError: It lacks one.
    """
    trained, validation, test = (
        split.classes for split in (splits.train, splits.validation, splits.test) if isinstance(split, ImageDataset)
    )
    missing = sorted((validation | test) - trained)
    if missing:
        raise TaskError(
            f"every class must have images in the training split, but class {missing[0]} has none there"
            f"{f', nor have {len(missing) - 1} others' if len(missing) > 1 else ''}. Raise train_samples, lower "
            "validation, or give more images."
        )
