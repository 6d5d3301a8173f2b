"""A cache of prepared data: files are written whole, and verified when they are read; it changes no result."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from naspipe.errors import NaspipeWarning, RunError
from naspipe.files import write_bytes

_MAGIC = b"naspipe cache "


def cache_folder(given: str | None = None) -> Path:
    """Return the cache's folder.

    Args:
        given: The folder in the configuration, or None: that of the environment variable ``NASPIPE_CACHE``, else
            ``naspipe`` in ``XDG_CACHE_HOME``, else ``~/.cache/naspipe``.
    """
    named = given or os.environ.get("NASPIPE_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "")
    # By the XDG specification, relative paths are ignored.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "naspipe"


def cached(folder: Path, name: str, key: Sequence[str], make: Callable[[], bytes]) -> bytes:
    """Return the result of ``make``, from the cache if it has a valid file, else made and cached.

    Processes that run at the same time may all make the data. Each writes a temporary file and renames it, so a reader
    finds a whole file or none. If the folder cannot be written to, this only warns.

    Args:
        folder: The cache; it is created if needed.
        name: The beginning of the file's name, for people.
        key: Everything that the result depends on.
        make: Makes the data; its result may depend only on ``key``.
    """
    digest = hashlib.sha256(repr(tuple(key)).encode()).hexdigest()
    path = folder / f"{name}-{digest[:32]}"
    data = _read(path, digest)
    if data is None:
        data = make()
        try:
            write_bytes(path, _head(digest, data) + data)
        except RunError as error:
            _warn(
                f"{error} Without the cache the data is prepared again next time. NASPIPE_CACHE names another folder."
            )
    return data


def hash_texts(texts: Sequence[str]) -> str:
    """Return the SHA-256 of a sequence of texts, for a key."""
    digest = hashlib.sha256()
    for text in texts:
        content = text.encode("utf-8")
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()


def _read(path: Path, digest: str) -> bytes | None:
    """Return a file's data; None if there is no such file, or if it is damaged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        _warn(f"{path} cannot be read: {error.strerror or error}. Its data is prepared again.")
        return None
    head, _, data = content.partition(b"\n")
    if head + b"\n" != _head(digest, data):
        _warn(f"{path} is damaged: its checksum does not match. Its data is prepared again.")
        return None
    return data


def _head(digest: str, data: bytes) -> bytes:
    """Return the first line of a file. Its checksum includes the key, so a renamed file is not valid."""
    return _MAGIC + hashlib.sha256(digest.encode() + data).hexdigest().encode() + b"\n"


def _warn(message: str) -> None:
    warnings.warn(message, NaspipeWarning, stacklevel=4)
