"""A cache of decoded images, for later runs and for the other processes of this run."""

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
"""Version of the decoding; to be changed with its pixels."""


def decode_once(files: ImageFiles, size: int, channels: int, cache: Path) -> Images:
    """Return the result of ``decode``, from the cache if it has a valid file.

    Several processes may do this at the same time: each writes a temporary file and renames it.

    Args:
        files: The image files.
        size: Height and width in pixels.
        channels: 3 for colours, 1 for grey.
        cache: The folder of the cache. Other files, settings or versions of Pillow give another file in it.

    Raises:
        TaskError: As for ``decode``; or the cache cannot be written.
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
        raise TaskError(f"the cache of decoded images, {error} Or do without task.cache.") from error
    return images


def _read(path: Path) -> Images | None:
    """Return the images of a file; None if it is missing, or, with a warning, damaged."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in ("pixels", "targets")}
            if file.metadata()["digest"] == digest_tensors(tensors):
                return Images(**tensors)
        reason = "its checksum does not match"
    except (OSError, KeyError, TypeError, SafetensorError) as error:
        reason = str(error)
    message = f"{path} is damaged ({reason}). It is made again from the image files."
    warnings.warn(message, NaspipeWarning, stacklevel=2)
    return None


def _key(files: ImageFiles, size: int, channels: int) -> str:
    """Return a digest of everything that the decoded images depend on."""
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
