"""Fashion-MNIST: 70,000 images of clothes in 10 classes, 28 x 28 pixels, from Debian's package or a folder.

Source: Xiao, Rasul and Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning
Algorithms", 2017.
"""

from __future__ import annotations

from pathlib import Path

from naspipe.errors import TaskError
from naspipe.tasks.classification import ClassificationTask
from naspipe.tasks.data import Splits
from naspipe.tasks.idx import read_idx
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

PACKAGE = "dataset-fashion-mnist"
FOLDER = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package puts the files."""

FILES = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
"""The four files and the SHA-256 of their unpacked content, as version 0.0~git20200523 of the package has them."""

# Of the 60,000 training images.
MEAN, STD = 0.2860, 0.3530


class FashionMNIST(ClassificationTask):
    """Fashion-MNIST, 28 x 28 pixels, 10 classes, from Debian's dataset-fashion-mnist or a folder of IDX files."""

    def __init__(
        self,
        folder: str | None = None,
        verify: bool = True,
        validation: Fraction = 0.1,
        train_samples: PositiveInt | None = None,
        crop: Pixels = 0,
        flip: bool = False,
    ) -> None:
        """Choose the data.

        Args:
            folder: The folder of the four IDX files, gzipped or not; by default that of Debian's package.
            verify: Whether to compare the files with Fashion-MNIST's checksums; false for other data of the same
                format, such as MNIST.
            validation: Fraction of the training images for validation, which the search uses.
            train_samples: Number of images to train on; by default all.
            crop: Pixels of black around a training image, out of which a random crop of its size is taken; 0: no crop.
            flip: Whether to mirror half of the training images.
        """
        self.folder = FOLDER if folder is None else Path(folder)
        self.verify = verify
        self.validation = validation
        self.train_samples = train_samples
        self.augmentation = Augmentation(crop, flip)

    def load(self, seed: int) -> Splits:
        """Return inputs (samples, 1, 28, 28), with mean 0 and deviation 1, and targets (samples,) in [0, 10)."""
        paths = self._find()
        train, test = (self._read(paths, part) for part in ("train", "t10k"))
        splits = split_images(
            train,
            test,
            seed,
            Normalisation((MEAN,), (STD,)),
            self.augmentation,
            validation=self.validation,
            train_samples=self.train_samples,
        )
        require_trained_classes(splits)
        return splits

    def _find(self) -> dict[str, Path]:
        """Return the path of each file.

        Raises:
            TaskError: A file is missing.
        """
        paths: dict[str, Path] = {}
        for name in FILES:
            for path in (self.folder / name, self.folder / f"{name}.gz"):
                if path.is_file():
                    paths[name] = path
                    break
            else:
                raise TaskError(
                    f"Fashion-MNIST needs the files {', '.join(FILES)} (or with .gz), but {name} is not in "
                    f"{self.folder}. Install Debian's package {PACKAGE} (apt-get install {PACKAGE}), or set "
                    "task.folder to a folder with the four files."
                )
        return paths

    def _read(self, paths: dict[str, Path], part: str) -> Images:
        names = f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"
        pixels, labels = (
            read_idx(paths[name], dimensions, FILES[name] if self.verify else None)
            for name, dimensions in zip(names, (3, 1), strict=True)
        )
        if len(pixels) != len(labels):
            raise TaskError(
                f"there must be a label for each image, but {paths[names[0]]} has {len(pixels)} images and "
                f"{paths[names[1]]} has {len(labels)} labels."
            )
        return Images(pixels.unsqueeze(1), labels.long())
