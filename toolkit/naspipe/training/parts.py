"""Parts of a supernet: what the processes of the stages leave when they end, and the whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from naspipe.files import load_tensors, save_tensors

if TYPE_CHECKING:
    from torch import Tensor


def part_file(folder: Path, stage: int) -> Path:
    """Return where a stage leaves its layers."""
    return folder / f"stage{stage}.safetensors"


def join_parts(folder: Path, stages: int, supernet: Path | None) -> None:
    """Save the whole supernet, if it is wanted, from what the stages have left in a folder, and take that away."""
    if supernet is not None:
        tensors: dict[str, Tensor] = {}
        for stage in range(stages):
            tensors.update(load_tensors(part_file(folder, stage)))
        save_tensors(supernet, tensors, {"format": "pt"})
    remove_parts(folder)


def remove_parts(folder: Path) -> None:
    """Remove what stages have left, in whatever number."""
    for path in folder.glob(part_file(folder, 0).name.replace("0", "*")):
        path.unlink()
