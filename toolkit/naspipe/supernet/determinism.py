"""Settings of torch that keep a run bitwise reproducible: threads, deterministic algorithms, generators."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch

from naspipe.errors import InputError


@contextlib.contextmanager
def deterministic(threads: int, device: str) -> Iterator[None]:
    """Compute reproducibly within this context, and restore the settings of the process afterwards.

    Args:
        threads: Threads of torch within an operation. Their number changes results.
        device: ``cpu`` or ``cuda``.

    Raises:
        InputError: The device is not available.
    """
    check_device(device)
    if device == "cuda":
        # It must be set before CUDA starts. Without it cuBLAS is not reproducible.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.backends.mkldnn.enabled,
    )
    with (
        torch.inference_mode(False),
        torch.autocast(device, enabled=False),
        torch.random.fork_rng(enabled=True, devices=[torch.cuda.current_device()] if device == "cuda" else []),
    ):
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
        # Settings that the caller may have changed get the values that they have in a new process.
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
        torch.backends.mkldnn.enabled = True  # type: ignore[assignment]  # a property of the module
        try:
            yield
        finally:
            torch.set_num_threads(before[0])
            torch.use_deterministic_algorithms(before[1], warn_only=before[2])
            torch.backends.cudnn.benchmark = before[3]
            torch.set_default_dtype(before[4])
            torch.set_float32_matmul_precision(before[5])
            torch.backends.mkldnn.enabled = before[6]


def check_device(device: str) -> None:
    """Raise an error if a device is not available.

    Raises:
        InputError: It is not available.
    """
    if device == "cuda" and not torch.cuda.is_available():
        build = "" if torch.version.cuda else ", and this build of torch has no CUDA"
        raise InputError(
            f"training.device is 'cuda', but torch sees no GPU{build}. "
            "Set training.device=cpu, or see what `naspipe doctor` finds."
        )


def autocast(precision: str, device: str) -> contextlib.AbstractContextManager[object]:
    """Return the context in which blocks and loss run.

    Args:
        precision: ``fp32`` or ``bf16``.
        device: ``cpu`` or ``cuda``.
    """
    if precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device, dtype=torch.bfloat16)


def seed_generators(key: int) -> None:
    """Seed torch's generators of the CPU and of the current GPU."""
    # torch.manual_seed seeds every backend, and takes a hundred times as long.
    torch.default_generator.manual_seed(key)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch leaves it so
        torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(key)
