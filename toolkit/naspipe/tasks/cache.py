"""A cache of prepared data: a file is whole or absent, and is verified when read; it changes no result."""

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
        given: What a configuration says, or None: the environment variable ``NASPIPE_CACHE``, else
            ``naspipe`` in ``XDG_CACHE_HOME``, else ``~/.cache/naspipe``.
    """
    named = given or os.environ.get("NASPIPE_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The specification of base directories has relative paths ignored.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "naspipe"


def cached(folder: Path, name: str, key: Sequence[str], make: Callable[[], bytes]) -> bytes:
    """Return what ``make`` returns: from the cache if it is there and whole, else made and kept.

    Processes that start at once may each make it; each writes a file of its own and renames it, so a reader sees a
    whole one or none. A folder that cannot be written to costs a warning, not the run.

    Args:
        folder: The cache; made if need be.
        name: What it is, for people who look at the folder.
        key: Everything that the result depends on.
        make: Makes the data; only what is named in ``key`` may change its result.
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
                f"{error} Without the cache the same is prepared again next time; NASPIPE_CACHE names another folder."
            )
    return data


def hash_texts(texts: Sequence[str]) -> str:
    """Return the SHA-256 of texts, for a key: equal only if there are as many and each is the same."""
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
        _warn(f"{path} cannot be read and is prepared again: {error.strerror or error}.")
        return None
    head, _, data = content.partition(b"\n")
    if head + b"\n" != _head(digest, data):
        _warn(f"{path} is damaged: its checksum is not that of its content. It is prepared again.")
        return None
    return data


def _head(digest: str, data: bytes) -> bytes:
    """Return the line that a file starts with; the key is in the checksum, so a renamed file is found out."""
    return _MAGIC + hashlib.sha256(digest.encode() + data).hexdigest().encode() + b"\n"


def _warn(message: str) -> None:
    warnings.warn(message, NaspipeWarning, stacklevel=4)
