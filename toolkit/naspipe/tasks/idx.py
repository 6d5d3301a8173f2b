"""IDX files, the format of MNIST and similar data sets: a header and unsigned bytes, gzipped or not.

Format: LeCun, Cortes and Burges, "The MNIST database of handwritten digits", 1998.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from naspipe.errors import TaskError

UNSIGNED_BYTE = 8
"""The header's number for the type of images and labels."""


def read_idx(path: Path, dimensions: int, sha256: str | None = None) -> Tensor:
    """Read a file of unsigned bytes.

    Args:
        path: The file; gzipped if its name ends in .gz.
        dimensions: The required number of dimensions.
        sha256: The required digest of the unpacked content; None: any.

    Returns:
        The numbers, uint8, in the shape of the header.

    Raises:
        TaskError: It cannot be read, or has another digest or format.
    """
    content = _content(path)
    if sha256 is not None:
        found = hashlib.sha256(content).hexdigest()
        if found != sha256:
            raise TaskError(
                f"{path} must have the SHA-256 {sha256}, unpacked, but has {found} ({len(content):,} bytes). It is "
                "damaged, or has other data: get it again, or set task.verify=false for other data."
            )
    size = 4 + 4 * dimensions
    magic = bytes((0, 0, UNSIGNED_BYTE, dimensions))
    if len(content) < size or content[:4] != magic:
        raise TaskError(
            f"{path} must be an IDX file of unsigned bytes with {dimensions} dimension{'s' * (dimensions > 1)}, so "
            f"start with {magic.hex(' ')}, but it has {len(content):,} bytes and starts with "
            f"{bytes(content[:4]).hex(' ') or 'nothing'}."
        )
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    if math.prod(shape) != len(content) - size:
        raise TaskError(
            f"{path} must have {' x '.join(map(str, shape))} = {math.prod(shape):,} bytes after its header, but has "
            f"{len(content) - size:,}. It is incomplete or damaged: get it again."
        )
    if not math.prod(shape):
        return torch.empty(shape, dtype=torch.uint8)
    return torch.frombuffer(content, dtype=torch.uint8, offset=size).view(shape)


def _content(path: Path) -> bytearray:
    # Writable, so that a tensor can use this memory without a copy.
    try:
        packed = path.read_bytes()
        return bytearray(gzip.decompress(packed) if path.suffix == ".gz" else packed)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise TaskError(
            f"{path} cannot be read: {reason}. It is damaged, or you have no permission: get it again."
        ) from error
