"""A subnet as the planner knows it: the layers it uses and the costs of its blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LayerKey = tuple[int, str]
"""Block and name of a layer."""


class UsedLayer(NamedTuple):
    """A layer that a subnet uses in a block.

    Attributes:
        name: Unique within the block.
        strict: Whether only some architectures use the layer; False for an always-active layer.
    """

    name: str
    strict: bool


class SubnetShape(NamedTuple):
    """A subnet without its tensors.

    Attributes:
        layers: For every block the layers with parameters that the subnet uses.
        forward: For every block the ticks of its forward on one micro-batch, at least 1.
        backward: For every block the ticks of its backward on one micro-batch, at least 1.
        update: For every block the ticks of its update, at least 0.
    """

    layers: Sequence[Sequence[UsedLayer]]
    forward: Sequence[int]
    backward: Sequence[int]
    update: Sequence[int]
