"""The environment of a run: versions, threads, CPU capability, devices, and the processes of torchrun."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Any

PACKAGES = (
    "naspipe",
    "torch",
    "optuna",
    "numpy",
    "pydantic",
    "safetensors",
    "scikit-learn",
    "plotly",
)

OPTIONAL = ("tokenizers", "pysword", "sacrebleu")
"""Packages of extras that may change a result: listed only if they are installed."""


def package_versions() -> dict[str, str | None]:
    """Return the versions of the packages that may change a result; None for a required one that is not installed."""
    versions: dict[str, str | None] = {}
    for name in (*PACKAGES, *OPTIONAL):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            if name in PACKAGES:
                versions[name] = None
    return versions


def describe_environment(seed: int | None = None, threads: int | None = None) -> dict[str, Any]:
    """Return the content of ``environment.json``.

    Args:
        seed: The run's seed.
        threads: Threads of torch in the run, or None: as many as torch uses now.
    """
    import torch

    gpus = range(torch.cuda.device_count())
    return {
        "seed": seed,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": package_versions(),
        "cpu": {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            # Convolutions and linear layers give different bits with AVX2 and AVX-512.
            "capability": torch.backends.cpu.get_cpu_capability(),
        },
        "threads": torch.get_num_threads() if threads is None else threads,
        "gpus": [torch.cuda.get_device_name(index) for index in gpus],
        "cuda": torch.version.cuda,
        "backends": distributed_backends(),
    }


def torchrun_processes() -> int:
    """Return the number of processes that torchrun started, this one included; 0 without torchrun."""
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 0


def is_follower() -> bool:
    """Tell whether torchrun started this process, and its rank is not 0."""
    return torchrun_processes() > 0 and os.environ["RANK"] != "0"


def distributed_backends() -> list[str]:
    """Return the communication backends that this build of torch has."""
    from torch import distributed

    if not distributed.is_available():
        return []
    backends = {
        "gloo": distributed.is_gloo_available(),
        "nccl": distributed.is_nccl_available(),
        "mpi": distributed.is_mpi_available(),
    }
    return [name for name, available in backends.items() if available]
