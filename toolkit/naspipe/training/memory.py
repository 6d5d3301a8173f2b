"""The peak memory of this process."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

import torch


def reset_peak_memory(device: str) -> None:
    """Let ``peak_memory`` count from now on, where the system allows it."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with contextlib.suppress(OSError):
        # Linux: set the peak of resident memory to what it is now. Elsewhere it is that of the whole process.
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: str) -> float:
    """Return the peak memory of this process, in MiB: resident, or on a GPU what tensors took there."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().partition("VmHWM:")[2].split()[0]) / 2**10
    # In bytes on macOS, which has no /proc.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
