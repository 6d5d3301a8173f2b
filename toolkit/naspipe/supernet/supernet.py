"""The supernet: all blocks of a search space, with every layer that architectures share."""

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
"""Name of the layer of a block's parameters that are outside every named layer."""


@dataclass(frozen=True)
class LayerParameters:
    """A layer of a block: the parameters it owns.

    Attributes:
        block: Index of the block.
        name: Name of the layer within the block.
        strict: Whether only some architectures use it; False for the always-active layer.
        parameters: Its parameters, by their path within the block.
        slots: For each of them the module that holds it, and its name there.
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
    """Build the blocks of a space one by one, each initialised from its own key.

    Args:
        space: The search space.
        seed: The run's seed.
        purpose: What the weights are for; another purpose gives other weights.
        own: Indices of the blocks that get memory, or None: all do. The others are built on the meta device, as far
            as the space builds them one by one.

    Raises:
        SpaceError: The space yields something that is no module, or no block at all.
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
    """Every block of a search space, holding the weights of all architectures at once.

    Normalisations keep no running statistics in it; ``extract`` gives them back.
    """

    def __init__(
        self, space: SearchSpace, seed: int, own: Container[int] | None = None, freeze_always_active: bool = False
    ) -> None:
        """Build all blocks.

        Args:
            space: The search space.
            seed: Decides the initial weights.
            own: As for ``build_blocks``.
            freeze_always_active: Let parameters outside every strict layer need no gradient.

        Raises:
            SpaceError: The blocks are not well formed.
        """
        super().__init__()
        self.space = space
        self.blocks = nn.ModuleList(build_blocks(space, seed, "supernet", own))
        drop_statistics(self.blocks)
        if freeze_always_active:
            for block in self:
                _freeze_always_active(block)
        # For every block its layers that have parameters, by name.
        self.layers_by_block = [layers_of(block, index) for index, block in enumerate(self)]
        _refuse_tied(self.layers_by_block)

    def __iter__(self) -> Iterator[Block]:
        for block in self.blocks:
            assert isinstance(block, Block)
            yield block

    def __len__(self) -> int:
        return len(self.blocks)

    def forward(self, x: Payload, architecture: Architecture) -> Payload:
        """Run one architecture with the shared weights; training goes another way, through stages.

        Args:
            x: A batch's input.
            architecture: One of the space.
        """
        for block in self:
            x = block(x, architecture)
        return x

    def layers(self) -> list[LayerParameters]:
        """Return every layer that has parameters, block by block."""
        return [layer for block in self.layers_by_block for layer in block.values()]

    def used_layers(self, architecture: Architecture) -> list[tuple[LayerParameters, ...]]:
        """Return the layers with parameters that an architecture uses, for every block."""
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

        Its normalisations have running statistics again, those of a new module: calibrate or train it
        before evaluating it.
        """
        return _assemble(block.extract(architecture) for block in self)


def build_subnet(space: SearchSpace, architecture: Architecture, seed: int) -> nn.Sequential:
    """Return one subnet with fresh weights, as an ordinary module; never holds the whole supernet.

    Args:
        space: The search space.
        architecture: One of the space.
        seed: Decides the initial weights; they are not those of a supernet with the same seed.
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
    """Return the layers of a block that have parameters, by name; always-active ones that are frozen are in none.

    Raises:
        SpaceError: Two layers share a parameter, or a layer's module is not part of the block.
    """
    paths = {id(parameter): path for path, parameter in block.named_parameters()}
    owners: dict[int, str] = {}
    layers: dict[str, LayerParameters] = {}
    for name, module in block.layers().items():
        parameters: dict[str, nn.Parameter] = {}
        for parameter in module.parameters():
            if id(parameter) not in paths:
                raise SpaceError(
                    f"block {index}: layer {name!r} must be part of the block, but a parameter of it is "
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
            raise SpaceError(f"block {index}: a layer must not be called {name!r}.")
        if parameters:
            layers[name] = LayerParameters(index, name, True, parameters, _slots(block, parameters))
    # What is frozen and always active never changes: nobody waits for it, so it is in no layer.
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
        SpaceError: ``used_layers`` names a layer that ``layers`` does not, or one twice.
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
