"""Costs: the ticks that the blocks of a subnet take, which depend on the layers it uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from naspipe.errors import ConfigError, InputError, Problem
from naspipe.files import write_text
from naspipe.pipeline.subnet import SubnetShape, UsedLayer


class Ticks(NamedTuple):
    """Cost of one micro-batch's forward and backward, and of one update."""

    forward: int
    backward: int
    update: int


UNIT = Ticks(1, 2, 0)
"""The uniform cost of a block: its backward is two forwards, its update is free."""


class BlockCosts(BaseModel):
    """The costs of one block, each as [forward, backward, update] in ticks.

    Attributes:
        base: Cost of the block whatever layers a subnet uses.
        layers: Cost that each layer adds where a subnet uses it.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    base: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]] = (
        0,
        0,
        0,
    )
    layers: dict[str, tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]]] = {}


class CostTable(BaseModel):
    """The costs of all blocks; its file is its JSON.

    Attributes:
        version: Version of the file format.
        blocks: One entry for every block.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    version: Annotated[int, Field(ge=1, le=1)] = 1
    blocks: tuple[BlockCosts, ...]

    @classmethod
    def uniform(cls, blocks: int) -> CostTable:
        """Return the table in which every block costs the same, whatever layers a subnet uses."""
        return cls(blocks=tuple(BlockCosts(base=(UNIT.forward, UNIT.backward, UNIT.update)) for _ in range(blocks)))

    @classmethod
    def read(cls, path: Path) -> CostTable:
        """Read a table from its file.

        Raises:
            ConfigError: The file is no table; the error lists all problems.
        """
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError([Problem("", f"cannot be read: {error}.", str(path))]) from error
        except ValidationError as error:
            problems = [
                Problem(
                    ".".join(map(str, detail["loc"])),
                    f"{str(detail['msg']).replace('Input should be', 'must be')}, but got {detail['input']!r}.",
                    str(path),
                )
                for detail in error.errors(include_url=False)
            ]
            raise ConfigError(problems) from error

    def write(self, path: Path) -> None:
        """Write the table to a file."""
        write_text(path, self.model_dump_json(indent=1) + "\n")

    def describe(self, layers: Sequence[Sequence[UsedLayer]]) -> SubnetShape:
        """Return a subnet with its costs.

        Args:
            layers: For every block the layers that the subnet uses.

        Raises:
            InputError: The table has another number of blocks, or a forward or backward costs less than 1 tick.
        """
        if len(layers) != len(self.blocks):
            raise InputError(
                f"a cost table must have an entry for each of the {len(layers)} blocks, but has {len(self.blocks)}."
            )
        rows = [_add(block, used, index) for index, (block, used) in enumerate(zip(self.blocks, layers, strict=True))]
        forward, backward, update = zip(*rows, strict=True)
        return SubnetShape(layers, forward, backward, update)


def _add(block: BlockCosts, used: Sequence[UsedLayer], index: int) -> tuple[int, int, int]:
    forward, backward, update = block.base
    for name, _ in used:
        if name in block.layers:
            more = block.layers[name]
            forward, backward, update = forward + more[0], backward + more[1], update + more[2]
    if forward < 1 or backward < 1:
        raise InputError(
            f"forward and backward of block {index} must cost at least 1 tick, but cost {forward} and "
            f"{backward} with the layers {[name for name, _ in used]!r}. Raise its base cost."
        )
    return forward, backward, update


def scaled_table(costs: Sequence[tuple[float, Mapping[str, float]]], mean_ticks: int = 1_000) -> CostTable:
    """Return a table from forward costs in any unit.

    Args:
        costs: For every block the cost that all subnets share, and the cost that each layer adds.
        mean_ticks: Ticks of a block's mean forward. A backward costs twice as much, an update nothing.
    """
    means = [base + sum(layers.values()) / max(1, len(layers)) for base, layers in costs]
    unit = (sum(means) / len(means) or 1.0) / mean_ticks

    def ticks(value: float, least: int) -> tuple[int, int, int]:
        forward = max(least, round(value / unit))
        return forward, 2 * forward, 0

    return CostTable(
        blocks=tuple(
            BlockCosts(base=ticks(base, 1), layers={name: ticks(value, 0) for name, value in layers.items()})
            for base, layers in costs
        )
    )
