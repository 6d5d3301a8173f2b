"""Decoded image files, kept for the next run and for the other processes of this one."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path

from torch import Tensor

from naspipe.errors import NaspipeWarning, RunError, TaskError
from naspipe.files import digest_tensors, save_tensors
from naspipe.tasks.image_files import ImageFiles, decode, pillow
from naspipe.tasks.images import Images

FORMAT = 1
"""Another number where another way of decoding gives other pixels."""


def decode_once(files: ImageFiles, size: int, channels: int, cache: Path) -> Images:
    """Do as ``decode`` does, or read what it gave before.

    Processes may do so at the same time: each writes a file of its own and renames it into place.

    Args:
        files: What to read.
        size: Height and width.
        channels: 3 for colours, 1 for grey.
        cache: The folder that keeps the results; a change of any file, of the settings or of Pillow's version
            makes a new one.

    Raises:
        TaskError: As ``decode``; or the cache cannot be written.
    """
    path = cache / f"images-{_key(files, size, channels)}.safetensors"
    kept = _read(path)
    if kept is not None:
        return kept
    images = decode(files, size, channels)
    tensors = {"pixels": images.pixels, "targets": images.targets}
    try:
        save_tensors(path, tensors, {"digest": digest_tensors(tensors)})
    except RunError as error:
        raise TaskError(f"the cache of decoded images, {error} Or leave task.cache out.") from error
    return images


def _read(path: Path) -> Images | None:
    """Return the images of a cache's file; None if there is none, or, with a warning, if it is damaged."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in ("pixels", "targets")}
            if file.metadata()["digest"] == digest_tensors(tensors):
                return Images(**tensors)
        reason = "its checksum is another"
    except (OSError, KeyError, TypeError, SafetensorError) as error:
        reason = str(error)
    message = f"{path} is damaged ({reason}), and is made anew from the image files."
    warnings.warn(message, NaspipeWarning, stacklevel=2)
    return None


def _key(files: ImageFiles, size: int, channels: int) -> str:
    """Return a name that differs wherever the decoded images may."""
    stats = [(files.folder / name).stat() for name in files.paths]
    described = {
        "format": FORMAT,
        "pillow": pillow().__version__,
        "size": size,
        "channels": channels,
        "targets": files.targets,
        "files": [(name, stat.st_size, stat.st_mtime_ns) for name, stat in zip(files.paths, stats, strict=True)],
    }
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:24]
