"""The supernet: all blocks of a search space, with the layers that architectures share."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from naspipe.errors import SpaceError
from naspipe.keys import derive_key
from naspipe.space import Architecture, SearchSpace
from naspipe.supernet.block import Block, FixedBlock, Payload
from naspipe.supernet.normalization import drop_statistics, restore_statistics
from naspipe.usercode import calling

ALWAYS_ACTIVE = "always_active"
"""Name of the layer that has the block's parameters outside every strict layer."""


@dataclass(frozen=True)
class LayerParameters:
    """A layer of a block, with its parameters.

    Attributes:
        block: Index of the block.
        name: Name of the layer within the block.
        strict: Whether only some architectures use it; False for the always-active layer.
        parameters: Its parameters, by their path within the block.
        slots: For each parameter, the module that has it as an attribute, and the name of the attribute.
    """

    block: int
    name: str
    strict: bool
    parameters: dict[str, nn.Parameter]
    slots: tuple[tuple[nn.Module, str], ...] = ()

    @property
    def num_parameters(self) -> int:
        """Number of scalar parameters."""
        return sum(parameter.numel() for parameter in self.parameters.values())

    def __str__(self) -> str:
        return f"block {self.block}, layer {self.name!r}"


def build_blocks(space: SearchSpace, seed: int, purpose: str, own: Container[int] | None = None) -> Iterator[Block]:
    """Build the blocks of a space one by one, each initialised from a key of its own.

    Args:
        space: The search space.
        seed: The run's seed.
        purpose: The use of the weights, a part of the key: another purpose gives other weights.
        own: Indices of the blocks that get memory, or None: all. The others are built on the meta device, if the space
            builds its blocks one by one.

    Raises:
        SpaceError: The space yields something that is not a module, or yields no block.
    """
    count = 0
    end = object()
    name = type(space).__name__
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_key(seed, purpose, "init", 0))
        with calling(f"{name}.blocks()", SpaceError):
            blocks: object = space.blocks()
        if not isinstance(blocks, Iterable):
            raise SpaceError(
                f"{name}.blocks() must yield torch modules or return a list of them, but returned {blocks!r}."
            )
        iterator = iter(blocks)
        while True:
            torch.default_generator.manual_seed(derive_key(seed, purpose, "init", count))
            place = contextlib.nullcontext() if own is None or count in own else torch.device("meta")
            with calling(f"{name}.blocks(): building block {count}", SpaceError), place:
                module = next(iterator, end)
            if module is end:
                break
            if not isinstance(module, nn.Module):
                raise SpaceError(f"{name}.blocks() must yield torch modules, but yielded {module!r} as block {count}.")
            yield module if isinstance(module, Block) else FixedBlock(module)
            count += 1
    if count == 0:
        raise SpaceError(f"{name}.blocks() must yield blocks, but yielded none.")


class Supernet(nn.Module):
    """All blocks of a search space, with the weights of all architectures.

    Its normalisations have no running statistics; those of an extracted subnet have.

    Attributes:
        space: The search space.
        blocks: The blocks.
        layers_by_block: For every block, its layers that have parameters, by name.
    """

    def __init__(
        self, space: SearchSpace, seed: int, own: Container[int] | None = None, freeze_always_active: bool = False
    ) -> None:
        """Build all blocks.

        Args:
            space: The search space.
            seed: Decides the initial weights.
            own: As for ``build_blocks``.
            freeze_always_active: Set ``requires_grad`` of all parameters outside strict layers to False.

        Raises:
            SpaceError: The blocks are malformed.
        """
        super().__init__()
        self.space = space
        self.blocks = nn.ModuleList(build_blocks(space, seed, "supernet", own))
        drop_statistics(self.blocks)
        if freeze_always_active:
            for block in self:
                _freeze_always_active(block)
        self.layers_by_block = [layers_of(block, index) for index, block in enumerate(self)]
        _refuse_tied(self.layers_by_block)

    def __iter__(self) -> Iterator[Block]:
        for block in self.blocks:
            assert isinstance(block, Block)
            yield block

    def __len__(self) -> int:
        return len(self.blocks)

    def forward(self, x: Payload, architecture: Architecture) -> Payload:
        """Run one architecture with the shared weights; training runs the blocks through stages instead.

        Args:
            x: The input of a batch.
            architecture: An architecture of the space.
        """
        for block in self:
            x = block(x, architecture)
        return x

    def layers(self) -> list[LayerParameters]:
        """Return all layers that have parameters, block by block."""
        return [layer for block in self.layers_by_block for layer in block.values()]

    def used_layers(self, architecture: Architecture) -> list[tuple[LayerParameters, ...]]:
        """Return for every block the layers with parameters that an architecture uses."""
        return [
            used_layers(block, self.layers_by_block[index], index, architecture) for index, block in enumerate(self)
        ]

    def num_parameters(self, architecture: Architecture | None = None) -> int:
        """Return the number of scalar parameters of an architecture, or of the whole supernet."""
        total = sum(parameter.numel() for parameter in self.parameters())
        if architecture is None:
            return total
        frozen = total - sum(layer.num_parameters for layer in self.layers())
        return frozen + sum(layer.num_parameters for used in self.used_layers(architecture) for layer in used)

    def extract(self, architecture: Architecture) -> nn.Sequential:
        """Return a copy of one subnet with the shared weights, as an ordinary module.

        Its normalisations have the running statistics of a new module: calibrate or train it before you evaluate it.
        """
        return _assemble(block.extract(architecture) for block in self)


def build_subnet(space: SearchSpace, architecture: Architecture, seed: int) -> nn.Sequential:
    """Return one subnet with fresh weights, as an ordinary module; the supernet's blocks are built one after another.

    Args:
        space: The search space.
        architecture: An architecture of the space.
        seed: Decides the initial weights, which differ from those of a supernet with the same seed.
    """
    return _assemble(block.extract(architecture) for block in build_blocks(space, seed, "subnet"))


def _assemble(modules: Iterator[nn.Module]) -> nn.Sequential:
    subnet = nn.Sequential(OrderedDict((str(index), module) for index, module in enumerate(modules)))
    restore_statistics(subnet)
    return subnet


def _freeze_always_active(block: Block) -> None:
    strict = {id(parameter) for module in block.layers().values() for parameter in module.parameters()}
    for parameter in block.parameters():
        if id(parameter) not in strict:
            parameter.requires_grad_(False)


def layers_of(block: Block, index: int) -> dict[str, LayerParameters]:
    """Return the layers of a block that have parameters, by name; frozen always-active parameters belong to no layer.

    Raises:
        SpaceError: Two layers share a parameter, or the module of a layer is not part of the block.
    """
    paths = {id(parameter): path for path, parameter in block.named_parameters()}
    owners: dict[int, str] = {}
    layers: dict[str, LayerParameters] = {}
    for name, module in block.layers().items():
        parameters: dict[str, nn.Parameter] = {}
        for parameter in module.parameters():
            if id(parameter) not in paths:
                raise SpaceError(
                    f"block {index}: layer {name!r} must be part of the block, but one of its parameters is "
                    "not. Assign its module to an attribute of the block."
                )
            if id(parameter) in owners:
                raise SpaceError(
                    f"block {index}: layers must not share parameters, but {name!r} and "
                    f"{owners[id(parameter)]!r} share {paths[id(parameter)]!r}."
                )
            owners[id(parameter)] = name
            parameters[paths[id(parameter)]] = parameter
        if name == ALWAYS_ACTIVE:
            raise SpaceError(f"block {index}: the name of a layer must not be {name!r}. Choose another one.")
        if parameters:
            layers[name] = LayerParameters(index, name, True, parameters, _slots(block, parameters))
    # Frozen always-active parameters never change, so no subnet waits for them, and they need no layer.
    rest = {path: p for path, p in block.named_parameters() if id(p) not in owners and p.requires_grad}
    if rest:
        layers[ALWAYS_ACTIVE] = LayerParameters(index, ALWAYS_ACTIVE, False, rest, _slots(block, rest))
    return layers


def _slots(block: Block, paths: Iterable[str]) -> tuple[tuple[nn.Module, str], ...]:
    return tuple((block.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2]) for path in paths)


def used_layers(
    block: Block, layers: dict[str, LayerParameters], index: int, architecture: Architecture
) -> tuple[LayerParameters, ...]:
    """Return the layers with parameters that a block uses for an architecture.

    Raises:
        SpaceError: The block's ``used_layers`` names an unknown layer, or one layer twice.
    """
    names = tuple(block.used_layers(architecture))
    unknown = [name for name in names if name not in layers and name not in block.layers()]
    if unknown or len(set(names)) != len(names):
        raise SpaceError(
            f"block {index} ({type(block).__name__}): used_layers must name layers of the block, each "
            f"once, but named {list(names)!r}. It has {list(block.layers())!r}."
        )
    used = [layers[name] for name in names if name in layers]
    if ALWAYS_ACTIVE in layers:
        used.append(layers[ALWAYS_ACTIVE])
    return tuple(used)


def _refuse_tied(blocks: list[dict[str, LayerParameters]]) -> None:
    owners: dict[int, LayerParameters] = {}
    for block in blocks:
        for layer in block.values():
            for path, parameter in layer.parameters.items():
                other = owners.setdefault(id(parameter), layer)
                if other.block != layer.block:
                    raise SpaceError(
                        f"blocks must not share parameters, since a pipeline may put them on different "
                        f"devices, but {layer} and {other} share {path!r}. Give each block its own."
                    )
