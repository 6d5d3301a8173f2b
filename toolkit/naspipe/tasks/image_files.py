"""Image files in class folders, decoded with Pillow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from naspipe.errors import TaskError
from naspipe.tasks.images import Images
from naspipe.wording import listing

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""Suffixes of image files, in lower or upper case; other files are ignored."""


@dataclass(frozen=True)
class ImageFiles:
    """The image files of a folder of class folders.

    Attributes:
        folder: The folder.
        classes: Names of the class folders, sorted.
        paths: The image files relative to the folder, class by class, sorted within a class.
        targets: The class index of each file.
    """

    folder: Path
    classes: tuple[str, ...]
    paths: tuple[str, ...]
    targets: tuple[int, ...]


def list_images(folder: Path) -> ImageFiles:
    """Find the image files of a folder of class folders; names that start with a dot are ignored.

    Raises:
        TaskError: The folder is missing, or has fewer than two classes, or a class has no image.
    """
    expected = f"{folder} must be a folder with one folder of image files for each class, as in {folder}/cat/1.png"
    if not folder.is_dir():
        raise TaskError(f"{expected}, but there is no such folder. Give one that exists.")
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(classes) < 2:
        raise TaskError(f"{expected}, and at least two classes, but has {listing(classes)}.")
    paths: list[str] = []
    targets: list[int] = []
    for target, name in enumerate(classes):
        found = sorted(
            path.relative_to(folder).as_posix()
            for path in (folder / name).rglob("*")
            if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()
        )
        if not found:
            raise TaskError(f"every class must have images ({', '.join(SUFFIXES)}), but {folder / name} has none.")
        paths += found
        targets += [target] * len(found)
    return ImageFiles(folder, tuple(classes), tuple(paths), tuple(targets))


def decode(files: ImageFiles, size: int, channels: int) -> Images:
    """Read all images; each is scaled until its shorter side is ``size``, and cropped to its centre.

    Args:
        files: The image files.
        size: Height and width in pixels.
        channels: 3 for colours, 1 for grey.

    Raises:
        TaskError: Pillow is missing, or cannot read a file.
    """
    image_module = pillow()
    pixels = torch.empty(len(files.paths), channels, size, size, dtype=torch.uint8)
    for place, name in enumerate(files.paths):
        path = files.folder / name
        try:
            with image_module.open(path) as image:
                pixels[place] = _square(image, size, channels)
        except (OSError, SyntaxError, ValueError, image_module.DecompressionBombError) as error:
            # Pillow raises SyntaxError for some damaged files.
            raise TaskError(
                f"{path} cannot be read as an image: {error}. Replace it, or remove it from the folder."
            ) from error
    return Images(pixels, torch.tensor(files.targets))


def _square(image: Image, size: int, channels: int) -> Tensor:
    """Return an image as (channels, size, size), uint8.

    Raises:
        ValueError: It has more than 8 bits a channel.
    """
    from PIL import ImageOps
    from PIL.Image import Resampling

    if image.mode[0] in "IF":
        raise ValueError(f"it has more than 8 bits a channel (mode {image.mode})")
    if image.mode == "P":
        # A palette may have transparency; a conversion to RGB would then warn.
        image = image.convert("RGBA")
    upright = ImageOps.exif_transpose(image).convert("L" if channels == 1 else "RGB")
    fitted = ImageOps.fit(upright, (size, size), Resampling.BILINEAR)
    return torch.frombuffer(bytearray(fitted.tobytes()), dtype=torch.uint8).view(size, size, channels).permute(2, 0, 1)


def pillow() -> ModuleType:
    """Import Pillow's module of images.

    Raises:
        TaskError: It is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise TaskError(
            f"image files are read with Pillow, which cannot be imported: {error}. Install it: pip install pillow "
            "(it is in the extra naspipe[vision])."
        ) from error
    return Image
