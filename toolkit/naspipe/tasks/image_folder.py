"""A folder of class folders with image files, as a classification task."""

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
    """Image files in one folder for each class, scaled to one size; read with Pillow."""

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
            test_folder: Such a folder for the final test; without it, some images of ``folder`` are for the test.
            test: Fraction of the images in ``folder`` for the final test; 0.2 by default.
            validation: Fraction of the other images for validation, which the search uses.
            train_samples: Number of images to train on; by default all.
            size: Height and width in pixels: images are scaled until the shorter side fits, and cropped to the centre.
            channels: 3 for colours, 1 for grey.
            mean: Subtracted from pixels in [0, 1]: a number for each channel, or one for all; 0.5 by default.
            std: Divides the pixels after that: a number for each channel, or one for all; 0.5 by default.
            crop: Pixels of black around a training image, out of which a random crop of its size is taken; 0: no crop.
            flip: Whether to mirror half of the training images.
            cache: A folder for decoded images, so that later runs start sooner; by default none.

        Raises:
            TaskError: Two parameters exclude each other, or ``mean`` or ``std`` does not fit the channels.
        """
        if test_folder is not None and test is not None:
            raise TaskError(
                f"the test images are those of test_folder, or a fraction of folder, but both test_folder = "
                f"{test_folder!r} and test = {test} were given. Remove one."
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
            train, test = _split_off(self._decode(files), self.test, seed)
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


def _split_off(images: Images, fraction: float, seed: int) -> tuple[Images, Images]:
    """Return the images that are not for the test, and those that are."""
    order = draw_permutation(keyed_random(seed, "test"), len(images))
    count = round(len(images) * fraction)
    return images.take(sorted(order[count:])), images.take(sorted(order[:count]))
