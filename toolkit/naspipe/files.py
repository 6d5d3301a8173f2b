"""Files of a run: written whole or not at all, and read strictly."""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from naspipe.errors import InputError, NaspipeWarning, RunError, RunFolderError
from naspipe.wording import fault_of

if TYPE_CHECKING:
    from torch import Tensor


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of the operating system, raised while a file is written, into one that names the file.

    Raises:
        RunError: The file cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{path} cannot be written: {error.strerror or error}. What was written before is kept. "
            "Free some space, or let the folder be written to."
        ) from None  # The message says everything; a traceback would not help.


@contextmanager
def reading(place: str, advice: str) -> Iterator[None]:
    """Turn an error raised while a file is read into one that names the file and says what to do.

    Args:
        place: The file, and the line if it has lines.
        advice: What to do about a damaged file, as a sentence.

    Raises:
        RunFolderError: The file is missing, or is not UTF-8, not JSON, or not of the expected shape.
    """
    try:
        yield
    except RunFolderError:
        raise
    except (OSError, ValueError, InputError) as error:
        raise RunFolderError(f"{place} cannot be read: {_reason(error)}. {advice}".rstrip()) from error


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, json.JSONDecodeError):
        return f"it is not JSON, {error}"
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return " ".join([*map(str, first["loc"]), fault_of(first)])
    return str(error).removesuffix(".")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file: it replaces ``path`` when the context ends, or is removed after an error.

    Raises:
        RunError: The file cannot be written.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # The suffix stays, since some writers require it.
        temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
        try:
            yield temporary
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all.

    Raises:
        RunError: It cannot be written.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file, whole or not at all.

    Raises:
        RunError: It cannot be written.
    """
    write_bytes(path, text.encode("utf-8"))


def copy_file(source: Path, target: Path) -> None:
    """Copy a file, whole or not at all.

    Raises:
        RunError: It cannot be written.
    """
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a CSV table with a header, whole or not at all.

    Raises:
        RunError: It cannot be written.
    """
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def write_json(path: Path, data: Any) -> None:
    """Write a JSON file, whole or not at all; its numbers must be finite.

    Raises:
        RunError: It cannot be written.
    """
    write_text(path, json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path, read: Callable[[Any], Any] = lambda data: data, advice: str = "") -> Any:
    """Read a JSON file.

    Args:
        path: The file.
        read: Turns the content into the result; raises ValueError or InputError if the content is wrong.
        advice: What to do about a damaged file, as a sentence.

    Raises:
        RunFolderError: It is missing or damaged.
    """
    with reading(str(path), advice):
        return read(json.loads(path.read_bytes().decode("utf-8")))


def keep_lines(path: Path, count: int) -> None:
    """Keep only the first ``count`` lines of a file of JSON lines; it is replaced whole.

    Raises:
        RunFolderError: It has fewer lines.
        RunError: It cannot be written.
    """
    if not path.exists() and not count:
        return
    if not path.exists():
        raise RunFolderError(_too_short(path, count, 0))
    with replacing(path) as temporary:
        with path.open("rb") as old, temporary.open("wb") as new:
            kept = [new.write(line) for line in itertools.islice(old, count)]
            new.flush()
            os.fsync(new.fileno())
        if len(kept) < count:
            raise RunFolderError(_too_short(path, count, len(kept)))


def sort_lines(path: Path, key: str) -> None:
    """Sort a file of JSON lines by a key; it is replaced whole.

    Raises:
        RunError: It cannot be written.
    """
    lines = path.read_bytes().splitlines(keepends=True)
    ordered = sorted(lines, key=lambda line: json.loads(line)[key])
    if ordered != lines:
        write_bytes(path, b"".join(ordered))


def _too_short(path: Path, count: int, found: int) -> str:
    return f"{path} must have {count:,} lines to resume from, but has {found:,}. Restore the deleted lines."


class JsonLines:
    """Appends JSON objects to a file, one on each line; each is flushed at once."""

    def __init__(self, path: Path) -> None:
        """Open the file, and make its folder if needed; an incomplete last line is removed.

        Raises:
            RunError: It cannot be written.
        """
        self._path = path
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            mend_lines(path)
            self._file = path.open("a", encoding="utf-8")

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line.

        Raises:
            RunError: It cannot be written.
        """
        with writing(self._path):
            self._file.write(json.dumps(record, allow_nan=False, ensure_ascii=False) + "\n")
            self._file.flush()

    def sync(self) -> None:
        """Let the system write all appended lines to the disk.

        Raises:
            RunError: It cannot be written.
        """
        with writing(self._path):
            os.fsync(self._file.fileno())

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with writing(self._path):
            self._file.close()


def mend_lines(path: Path) -> None:
    """Let a file of JSON lines end with a whole line: an incomplete last one is removed."""
    body = path.read_bytes().rstrip(b"\n") if path.exists() else b""
    if not body:
        return
    start = body.rfind(b"\n") + 1
    with path.open("r+b") as file:
        if _is_json(body[start:]):
            file.seek(len(body))
            file.write(b"\n")
        file.truncate(len(body) + 1 if _is_json(body[start:]) else start)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line.decode("utf-8"))
    except ValueError:
        return False
    return True


def read_lines(path: Path, read: Callable[[Any], Any] = lambda data: data, advice: str = "") -> Iterator[Any]:
    """Yield the objects of a file of JSON lines; nothing if there is no file.

    A last line that is not JSON was interrupted while it was written: it is left out, with a warning.

    Args:
        path: The file.
        read: Turns an object into the yielded value; raises ValueError or InputError if the object is wrong.
        advice: What to do about a damaged line, as a sentence.

    Raises:
        RunFolderError: A line is damaged.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            if not _is_json(line) and not file.peek(1):
                message = f"{path}, line {number} is incomplete, since its writing was interrupted. It is left out."
                warnings.warn(message, NaspipeWarning, stacklevel=2)
                return
            with reading(f"{path}, line {number}", advice):
                record = read(json.loads(line.decode("utf-8")))
            yield record


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors as safetensors, whole or not at all.

    Tensors that share memory, as those of a module that is used in two places, are written once for each name.

    Raises:
        RunError: It cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    contiguous: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        own = tensor.detach().contiguous()
        storage = own.untyped_storage().data_ptr()
        contiguous[name] = own.clone() if storage in storages and own.numel() else own
        storages.add(storage)
    with replacing(path) as temporary:
        try:
            save_file(contiguous, temporary, metadata=dict(metadata))
        except SafetensorError as error:
            raise OSError(str(error)) from error


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        RunFolderError: It is missing or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}.") from error


def digest_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of tensors: equal digests mean equal names, dtypes, shapes and bits."""
    import torch

    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
