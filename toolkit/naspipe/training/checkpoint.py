"""Checkpoints: the state of a supernet's training between two subnets, in files that are complete or absent.

A checkpoint *at index c* holds every layer after the updates of all subnets below c, the older versions that later
subnets must read, the optimizers' states, and the sampler's state before it draws subnet c. Each process writes its
layers into a shard. The manifest names all shards with their checksums, and is renamed into place last. Layers are
found by name, so any number of stages can load a checkpoint.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field
from safetensors import SafetensorError, safe_open

from naspipe.errors import NaspipeWarning, RunError, RunFolderError
from naspipe.files import read_json, save_tensors, write_json
from naspipe.records import Record
from naspipe.training.layers import Layer, LayerFacts, LayerState

TRIES = 3
"""Number of times that a write is tried before the training ends."""

PAUSE_SECONDS = 1.0
"""Pause between two tries, in seconds."""

MANIFEST = "manifest.json"


class _Shard(Record):
    """The file of one process, and the layers in it."""

    file: str
    bytes: int
    sha256: str
    layers: dict[str, LayerFacts]


class _Manifest(Record):
    """The shards of a checkpoint."""

    subnet: int
    sampler: dict[str, Any]
    # Files say "parts" since the first version.
    shards: list[_Shard] = Field(alias="parts")


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint.

    Attributes:
        folder: The checkpoint's folder.
        subnet: The index c: subnets below it have been trained.
        sampler: The sampler's state before it draws subnet c.
    """

    folder: Path
    subnet: int
    sampler: dict[str, Any]
    _shards: tuple[_Shard, ...]

    def restore(self, layers: Iterable[Layer]) -> None:
        """Restore layers.

        Raises:
            RunFolderError: A layer is missing: the space has changed.
        """
        wanted = {layer.key: layer for layer in layers}
        for shard in self._shards:
            mine = {key: facts for key, facts in shard.layers.items() if key in wanted}
            if not mine:
                continue
            with safe_open(self.folder / shard.file, "pt") as file:
                names: dict[str, list[str]] = {}
                for name in file.keys():  # noqa: SIM118  # no mapping
                    key, _, rest = name.partition("//")
                    names.setdefault(key, []).append(rest)
                for key, facts in mine.items():
                    tensors = {rest: file.get_tensor(f"{key}//{rest}") for rest in names.get(key, ())}
                    wanted.pop(key).restore(LayerState(tensors, facts))
        if wanted:
            raise RunFolderError(
                f"{self.folder} must hold every layer of the supernet, but lacks {len(wanted)}, of which the first is "
                f"{next(iter(wanted))!r}. Has the search space changed?"
            )


class CheckpointFolder:
    """The checkpoints of one training; several processes may write into it."""

    def __init__(self, root: Path) -> None:
        """Use a folder; the first checkpoint creates it."""
        self.root = root

    def write_shard(self, subnet: int, number: int, layers: Iterable[Layer]) -> None:
        """Write this process's shard of a checkpoint; no subnet may be in flight.

        Args:
            subnet: The index.
            number: Number of the shard.
            layers: The layers of this process.

        Raises:
            RunError: It cannot be written.
        """
        states = {layer.key: layer.state() for layer in layers}
        tensors = {f"{key}//{name}": t for key, state in states.items() for name, t in state.tensors.items()}
        path = self._folder(subnet) / f"part{number}.safetensors"

        def write() -> None:
            save_tensors(path, tensors, {"format": "pt"})
            _sync(path)
            shard = _Shard(
                file=path.name,
                bytes=path.stat().st_size,
                sha256=_sha256(path),
                layers={key: state.facts for key, state in states.items()},
            )
            write_json(path.with_suffix(".json"), shard.model_dump())

        _with_retries(write)

    def finish(self, subnet: int, shards: int, sampler: Mapping[str, Any], keep: int) -> None:
        """Complete a checkpoint once every process has written its shard, and remove older checkpoints.

        Args:
            subnet: The index.
            shards: Number of shards.
            sampler: The sampler's state before it draws the subnet.
            keep: Checkpoints to keep.

        Raises:
            RunError: It cannot be written.
        """
        folder = self._folder(subnet)

        def write() -> None:
            found = [read_json(folder / f"part{number}.json", _Shard.model_validate) for number in range(shards)]
            manifest = _Manifest(subnet=subnet, sampler=dict(sampler), parts=found)
            write_json(folder / MANIFEST, manifest.model_dump(by_alias=True))
            _sync(folder / MANIFEST)
            _sync(folder)

        _with_retries(write)
        for old in self.indices()[keep:]:
            self.remove(old)

    def indices(self) -> list[int]:
        """Return the indices of the checkpoints that have a manifest, the last first."""
        if not self.root.is_dir():
            return []
        found = [path.parent.name for path in self.root.glob(f"*/{MANIFEST}")]
        return sorted((int(name) for name in found if name.isdigit()), reverse=True)

    def start(self) -> Checkpoint | None:
        """Return the last complete checkpoint, and remove those after it; warn of each damaged one.

        The training writes the later checkpoints again, perhaps in other shards.
        """
        found = self.latest()
        first = -1 if found is None else found.subnet
        for folder in [*self.root.glob("*")]:
            if folder.name.isdigit() and (int(folder.name) > first or not (folder / MANIFEST).exists()):
                self.remove(int(folder.name))
        return found

    def latest(self) -> Checkpoint | None:
        """Return the last complete checkpoint; warn of each damaged one."""
        for subnet in self.indices():
            try:
                return self.open(subnet)
            except RunFolderError as error:
                message = f"{error} An earlier checkpoint is used, if there is one."
                warnings.warn(message, NaspipeWarning, stacklevel=2)
        return None

    def open(self, subnet: int, check: bool = True) -> Checkpoint:
        """Return a checkpoint.

        Args:
            subnet: Its index.
            check: Compare all bytes with their checksums; not needed where another process has done it.

        Raises:
            RunFolderError: It is damaged.
        """
        folder = self._folder(subnet)
        manifest: _Manifest = read_json(folder / MANIFEST, _Manifest.model_validate)
        for shard in manifest.shards if check else ():
            path = folder / shard.file
            try:
                size = path.stat().st_size
                if size != shard.bytes:
                    raise ValueError(f"it has {size:,} bytes instead of {shard.bytes:,}")
                if _sha256(path) != shard.sha256:
                    raise ValueError("its checksum has changed since it was written")
                with safe_open(path, "pt"):
                    pass
            except (OSError, ValueError, SafetensorError) as error:
                reason = error.strerror if isinstance(error, OSError) and error.strerror else error
                raise RunFolderError(f"the checkpoint's file {path} is damaged: {reason}.") from error
        return Checkpoint(folder, manifest.subnet, manifest.sampler, tuple(manifest.shards))

    def remove(self, subnet: int) -> None:
        """Remove a checkpoint, its manifest first."""
        (self._folder(subnet) / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(self._folder(subnet), ignore_errors=True)

    def remove_all(self) -> None:
        """Remove every checkpoint, once the trained supernet has been saved."""
        for manifest in self.root.glob(f"*/{MANIFEST}"):
            manifest.unlink()
        shutil.rmtree(self.root, ignore_errors=True)

    def _folder(self, subnet: int) -> Path:
        return self.root / f"{subnet:09d}"


def _with_retries(write: Callable[[], None]) -> None:
    for left in reversed(range(TRIES)):
        try:
            write()
        except (RunError, OSError) as error:
            if not left:
                raise error if isinstance(error, RunError) else RunError(f"a checkpoint: {error}") from error
            warnings.warn(f"{error} It is tried again.", NaspipeWarning, stacklevel=3)
            time.sleep(PAUSE_SECONDS)
        else:
            return


def _sync(path: Path) -> None:
    """Have the system write a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
