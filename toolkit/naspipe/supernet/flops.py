"""FLOPs of blocks and layers, counted on the meta device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from naspipe.keys import keyed_random
from naspipe.space import Architecture
from naspipe.space.covering import covering_architectures
from naspipe.supernet.block import Block
from naspipe.supernet.supernet import ALWAYS_ACTIVE, Supernet


class LayerFlops:
    """FLOPs of one forward.

    Attributes:
        base: For every block, the FLOPs outside its strict layers; the smallest number seen, if they vary.
        layers: For every block, the FLOPs of each strict layer.
    """

    def __init__(self, blocks: int) -> None:
        self.base: list[int | None] = [None] * blocks
        self.layers: list[dict[str, int]] = [{} for _ in range(blocks)]

    def costs(self) -> list[tuple[float, dict[str, float]]]:
        """Return the costs of every block for a cost table: its base, and its layers."""
        return [
            (float(base or 0), {name: float(value) for name, value in layers.items()})
            for base, layers in zip(self.base, self.layers, strict=True)
        ]


def count_flops(supernet: Supernet, inputs: Any) -> LayerFlops:
    """Count the FLOPs of every layer, by running architectures in which every option occurs.

    A layer that none of these architectures uses counts as 0.

    Args:
        supernet: A supernet on the meta device.
        inputs: The input of a batch, on the meta device.
    """
    found = LayerFlops(len(supernet))
    supernet.train()
    for architecture in covering_architectures(supernet.space, keyed_random(0, "flops")):
        _run(supernet, architecture, inputs, found)
    return found


def _run(supernet: Supernet, architecture: Architecture, inputs: Any, found: LayerFlops) -> None:
    """Run one architecture, and enter the FLOPs of its layers."""
    payload = inputs
    used = supernet.used_layers(architecture)
    with torch.no_grad():
        for index, block in enumerate(supernet):
            names = [layer.name for layer in used[index] if layer.name != ALWAYS_ACTIVE]
            with FlopCounterMode(display=False) as counter:
                layers, hooks = _watch(block, names, counter)
                payload = block(payload, architecture)
            for hook in hooks:
                hook.remove()
            found.layers[index].update(layers)
            rest = counter.get_total_flops() - sum(layers.values())
            before = found.base[index]
            found.base[index] = rest if before is None else min(before, rest)


def _watch(
    block: Block, names: Sequence[str], counter: FlopCounterMode
) -> tuple[dict[str, int], list[torch.utils.hooks.RemovableHandle]]:
    """Add hooks to the modules of layers that count the FLOPs of each."""
    flops = dict.fromkeys(names, 0)
    started: dict[str, int] = {}
    hooks = []

    def watch(name: str, module: nn.Module) -> None:
        def begin(*_: object) -> None:
            started[name] = counter.get_total_flops()

        def end(*_: object) -> None:
            flops[name] += counter.get_total_flops() - started[name]

        hooks.append(module.register_forward_pre_hook(begin))
        hooks.append(module.register_forward_hook(end))

    modules = block.layers()
    for name in names:
        watch(name, modules[name])
    return flops, hooks
