"""Requirements of training in several processes: a backend, GPUs, and plug-ins that other processes can import."""

from __future__ import annotations

import os

import torch

from naspipe import registry
from naspipe.config.schema import RunConfig
from naspipe.environment import distributed_backends, torchrun_processes
from naspipe.errors import InputError
from naspipe.search.conditions import parse_condition


def backend_of(config: RunConfig) -> str:
    """Return the backend that moves activations and gradients."""
    if config.executor.backend != "auto":
        return config.executor.backend
    return "nccl" if config.training.device == "cuda" else "gloo"


def require_gpus(config: RunConfig, processes: int) -> None:
    """Refuse a training for which this machine has too few GPUs.

    Args:
        config: The configuration.
        processes: Number of stages that run on this machine.

    Raises:
        InputError: There are too few.
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
            f"GPU{'' if there == 1 else 's'}. Set executor.stages to {there} or fewer; or executor.backend=gloo, with "
            "which stages may share a GPU; or executor.transport=in-process, which trains all stages on one."
        )


def check_stage_processes(config: RunConfig) -> None:
    """Refuse a training that this machine or other processes cannot run.

    Raises:
        InputError: A plug-in is defined in an interactive session or was registered in this process only; torch
            lacks the backend; there are too few GPUs; or torchrun started another number of processes.
    """
    _check_backend(config)
    started = torchrun_processes()
    if started not in (0, config.executor.stages):
        raise InputError(
            f"torchrun must start a process for each of the {config.executor.stages} stages, but started {started}. "
            "Set executor.stages, or torchrun's --nnodes and --nproc-per-node."
        )
    require_importable(config, "executor.transport 'distributed'", "set executor.transport to in-process")


def _check_backend(config: RunConfig) -> None:
    backend, stages = backend_of(config), config.executor.stages
    for needed in dict.fromkeys(("gloo", backend)):
        if needed not in distributed_backends():
            raise InputError(
                f"executor.transport 'distributed' needs torch's backend {needed}, but this build of torch has "
                f"{', '.join(distributed_backends()) or 'none'}. Set executor.transport to in-process."
            )
    if backend == "nccl" and config.training.device != "cuda":
        raise InputError(
            "executor.backend 'nccl' moves tensors between GPUs, but training.device is 'cpu'. Set "
            "executor.backend=gloo, or training.device=cuda."
        )
    # On other machines each process checks this itself before it trains.
    require_gpus(config, int(os.environ["LOCAL_WORLD_SIZE"]) if torchrun_processes() else stages)


def check_retrain_processes(config: RunConfig) -> None:
    """Refuse a data-parallel retraining that this machine or other processes cannot run.

    Raises:
        InputError: Torch lacks the backend, there are too few GPUs, or a plug-in is known to this process only.
    """
    processes, backend = config.retrain.processes, retrain_backend(config)
    if backend not in distributed_backends():
        raise InputError(
            f"retrain.processes = {processes} needs torch's backend {backend}, but this build of torch has "
            f"{', '.join(distributed_backends()) or 'none'}. Set retrain.processes to 1."
        )
    gpus = torch.cuda.device_count() if backend == "nccl" else processes
    if processes > gpus:
        raise InputError(
            f"retrain.processes = {processes} needs a GPU for each process, but torch sees {gpus}. Set "
            f"retrain.processes to {max(1, gpus)} or fewer, or training.device to cpu."
        )
    require_importable(config, f"retrain.processes = {processes}", "set retrain.processes to 1")


def retrain_backend(config: RunConfig) -> str:
    """Return the backend that sums gradients.

    The order of sums may depend on the backend, so no setting under ``executor`` decides about it.
    """
    return "nccl" if config.training.device == "cuda" else "gloo"


def require_importable(config: RunConfig, reason: str, remedy: str) -> None:
    """Refuse a configuration whose plug-ins other processes cannot find.

    Args:
        config: A resolved configuration.
        reason: The setting that starts processes, for the message.
        remedy: Another solution than to refer to the class by its file, for the message.

    Raises:
        InputError: A plug-in is defined in an interactive session, or was registered in this process only.
    """
    conditions = [parse_condition(text).metric for text in config.search.constraints]
    measures = [
        name for name in (*config.search.objectives, *conditions) if name in registry.objectives.names() or ":" in name
    ]
    for kind, name in (
        (registry.spaces, config.space.name),
        (registry.tasks, config.task.name),
        (registry.samplers, config.sampler.name),
        (registry.executors, config.executor.name),
        (registry.strategies, config.search.strategy.name),
        *((registry.objectives, name) for name in measures),
    ):
        kind.require_elsewhere(name, reason, remedy)
