"""The meta device: a supernet and its inputs without memory for values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree  # flattens any nest; torch offers no public one

from naspipe.errors import SpaceError
from naspipe.space import SearchSpace
from naspipe.supernet.supernet import Supernet


def build_on_meta(space: SearchSpace, seed: int, freeze_always_active: bool = False) -> Supernet:
    """Return a space's supernet without memory for its weights."""
    try:
        with torch.device("meta"):
            return Supernet(space, seed, freeze_always_active=freeze_always_active)
    except SpaceError:
        # A space that reads the values of tensors while it is built needs a real device first.
        return Supernet(space, seed, freeze_always_active=freeze_always_active).to("meta")


def to_meta(nest: Any) -> Any:
    """Return a nest with its tensors on the meta device."""
    return pytree.tree_map(lambda value: value.to("meta") if isinstance(value, Tensor) else value, nest)
