"""A folder of class folders with image files: one's own pictures as a classification task."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from naspipe.errors import TaskError
from naspipe.keys import draw_permutation, keyed_random
from naspipe.tasks.classification import ClassificationTask
from naspipe.tasks.data import Splits
from naspipe.tasks.image_cache import decode_once
from naspipe.tasks.image_files import ImageFiles, decode, list_images
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
from naspipe.wording import listing


class ImageFolder(ClassificationTask):
    """Image files in a folder for each class, brought to one size; read with Pillow."""

    def __init__(
        self,
        folder: str,
        test_folder: str | None = None,
        test: Fraction | None = None,
        validation: Fraction = 0.1,
        train_samples: PositiveInt | None = None,
        size: PositiveInt = 32,
        channels: Literal[1, 3] = 3,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        crop: Pixels = 0,
        flip: bool = False,
        cache: str | None = None,
    ) -> None:
        """Choose the data.

        Args:
            folder: A folder with one folder of image files for each class; classes are numbered by name.
            test_folder: The same for the final test; without it, a part of ``folder`` is taken.
            test: Fraction of the images in ``folder`` for the final test; 0.2 by default.
            validation: Fraction of the remaining images that the search looks at.
            train_samples: Train on so many images only.
            size: Height and width: the shorter side is brought to it, and the middle cut out.
            channels: 3 for colours, 1 for grey.
            mean: Subtracted from pixels in [0, 1]: a number for each channel, or one for all; 0.5 by default.
            std: What they are divided by then, likewise.
            crop: Train on pieces cut at random from images with so many pixels of black around them; 0 for none.
            flip: Mirror half of the training images.
            cache: A folder that keeps the decoded images, so that a later run starts sooner.

        Raises:
            TaskError: These do not fit each other.
        """
        if test_folder is not None and test is not None:
            raise TaskError(
                f"the test images come from test_folder or are a fraction of folder, but both test_folder = "
                f"{test_folder!r} and test = {test} were given. Leave one out."
            )
        self.folder = Path(folder)
        self.test_folder = None if test_folder is None else Path(test_folder)
        self.test = 0.2 if test is None else test
        self.validation = validation
        self.train_samples = train_samples
        self.size, self.channels = size, channels
        self.normalisation = Normalisation.of(mean, std, channels)
        self.augmentation = Augmentation(crop, flip)
        self.cache = None if cache is None else Path(cache)

    def load(self, seed: int) -> Splits:
        """Return inputs (samples, channels, size, size) and targets (samples,) in [0, classes)."""
        files = list_images(self.folder)
        if self.test_folder is None:
            train, test = _part(self._decode(files), self.test, seed)
        else:
            others = list_images(self.test_folder)
            if others.classes != files.classes:
                raise TaskError(
                    f"both folders must have the same classes, but {self.folder} has {listing(files.classes)} and "
                    f"{self.test_folder} has {listing(others.classes)}."
                )
            train, test = self._decode(files), self._decode(others)
        splits = split_images(
            train,
            test,
            seed,
            self.normalisation,
            self.augmentation,
            validation=self.validation,
            train_samples=self.train_samples,
        )
        require_trained_classes(splits)
        return splits

    def _decode(self, files: ImageFiles) -> Images:
        if self.cache is None:
            return decode(files, self.size, self.channels)
        return decode_once(files, self.size, self.channels, self.cache)


def _part(images: Images, fraction: float, seed: int) -> tuple[Images, Images]:
    """Return the images without, and with, those that are for the test."""
    order = draw_permutation(keyed_random(seed, "test"), len(images))
    count = round(len(images) * fraction)
    return images.take(sorted(order[count:])), images.take(sorted(order[:count]))
