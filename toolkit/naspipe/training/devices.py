"""What moves results between processes, and whether a machine has the GPUs for it."""

from __future__ import annotations

import torch

from naspipe.config.schema import RunConfig
from naspipe.errors import InputError


def backend_of(config: RunConfig) -> str:
    """Return the backend that moves what a training passes on."""
    if config.executor.backend != "auto":
        return config.executor.backend
    return "nccl" if config.training.device == "cuda" else "gloo"


def require_gpus(config: RunConfig, processes: int) -> None:
    """Refuse a training for which this machine has too few GPUs.

    Args:
        config: The configuration.
        processes: Stages that run on this machine.

    Raises:
        InputError: It has.
    """
    if config.training.device != "cuda":
        return
    needed = processes if backend_of(config) == "nccl" else 1
    there = torch.cuda.device_count()
    if there == 0:
        raise InputError("training.device 'cuda' needs a GPU, but here is none. Set training.device=cpu.")
    if there < needed:
        raise InputError(
            f"executor.backend 'nccl' needs a GPU for each stage, but here are {processes} stages and {there} "
            f"GPU{'' if there == 1 else 's'}. Set executor.stages to {there} or fewer; or executor.backend=gloo, by "
            "which stages may share a GPU; or executor.transport=in-process, which trains all stages on one."
        )
