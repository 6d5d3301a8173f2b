"""A trainer from a configuration, as every command and every process makes it."""

from __future__ import annotations

import contextlib
import hashlib
import resource
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from naspipe.components import Components
from naspipe.config.schema import RunConfig
from naspipe.errors import SpaceError
from naspipe.files import digest_tensors
from naspipe.pipeline.gate import open_gate
from naspipe.pipeline.partition import Cuts
from naspipe.planning import prepare_planning
from naspipe.supernet.supernet import Supernet
from naspipe.tasks.data import Splits
from naspipe.training.checkpoint import Checkpoint
from naspipe.training.gatekeeper import Gatekeeper
from naspipe.training.layers import Layer
from naspipe.training.loop import Connect, SupernetTrainer
from naspipe.training.transport import InProcess


@dataclass(frozen=True)
class Prepared:
    """A trainer that has not run yet.

    Attributes:
        trainer: The trainer.
        supernet: What it trains.
        cuts: The partition into parts.
    """

    trainer: SupernetTrainer
    supernet: Supernet
    cuts: Cuts


def prepare_trainer(
    config: RunConfig,
    components: Components,
    splits: Splits,
    supernet: Supernet | None = None,
    stage: int | None = None,
    connect: Connect = lambda signature: InProcess(),
    checkpoint: Checkpoint | None = None,
    gatekeeper: Gatekeeper | None = None,
) -> Prepared:
    """Make a trainer.

    Args:
        config: The configuration.
        components: Its plug-ins, not used before.
        splits: The task's data.
        supernet: Untrained; by default a new one.
        stage: The stage that is in this process, or None: all are.
        connect: Makes the transport.
        checkpoint: Where to go on, or None: at the beginning.
        gatekeeper: Says where the training is cut, or None: nowhere.

    Raises:
        InputError: The layout does not fit.
    """
    planning = prepare_planning(config, components, splits)
    first, state = (0, None) if checkpoint is None else (checkpoint.subnet, checkpoint.sampler)
    planner, cuts = planning.planner(first, state, gatekeeper or open_gate)
    if supernet is None:
        supernet = _build(config, components, cuts, stage)
    trainer = SupernetTrainer(
        supernet, components.task, splits.train, components.sampler, planner, cuts, config.training, config.seed,
        stage=stage, connect=connect, meta=planning.supernet, recompute=config.executor.recompute,
        first=first, is_cut=lambda subnet: gatekeeper is not None and subnet in gatekeeper.cuts,
    )  # fmt: skip
    if checkpoint is not None:
        components.sampler.restore(checkpoint.sampler)
        checkpoint.restore(trainer.own_layers())
    return Prepared(trainer, supernet, cuts)


def _build(config: RunConfig, components: Components, cuts: Cuts, stage: int | None) -> Supernet:
    """Return a new supernet, with memory for the blocks of a stage only where that will do."""
    build = partial(Supernet, components.space, config.seed, freeze_always_active=config.training.freeze_always_active)
    # Under autocast, the form of what a block returns is found on real blocks.
    if stage is None or config.training.precision != "fp32":
        return build()
    segments = config.executor.segments
    own = range(cuts[stage * segments], cuts[(stage + 1) * segments])
    try:
        supernet = build(own=own)
    except SpaceError:
        # A space may compute with the values of tensors while it is built; then there is no other way.
        return build()
    if any(parameter.is_meta for index in own for parameter in supernet.blocks[index].parameters()):
        # Nor where it builds blocks before it yields those in front of them.
        return build()
    return supernet


def layer_digests(trainer: SupernetTrainer) -> dict[str, str]:
    """Return a digest of every layer that is in this process: weights, optimizer state and version."""
    return {f"{layer.spec.block}/{layer.spec.name}": _digest(layer) for layer in trainer.own_layers()}


def _digest(layer: Layer) -> str:
    tensors = {path: parameter.detach() for path, parameter in layer.spec.parameters.items()}
    if layer.optimizer is not None:
        for number, state in layer.optimizer.state_dict()["state"].items():
            for key, value in state.items():
                if value is not None:
                    tensors[f"optimizer.{number}.{key}"] = torch.as_tensor(value)
    return hashlib.sha256(f"{digest_tensors(tensors)} {layer.version}".encode()).hexdigest()


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
