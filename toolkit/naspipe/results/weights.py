"""Weights of a run: loaded into modules that they must fit."""

from __future__ import annotations

import textwrap
from pathlib import Path

from torch import nn

from naspipe.errors import RunFolderError
from naspipe.files import load_tensors

LINES = 3
"""Mismatches that an error shows."""


def load_weights(module: nn.Module, path: Path) -> None:
    """Load a safetensors file into a module.

    Raises:
        RunFolderError: It is damaged, or belongs to another module.
    """
    try:
        module.load_state_dict(load_tensors(path))
    except RuntimeError as error:
        found = [textwrap.shorten(line, 200) for line in str(error).splitlines()[1:]]
        rest = f"\n  and {len(found) - LINES} more" if len(found) > LINES else ""
        shown = "".join(f"\n  {line}" for line in found[:LINES])
        raise RunFolderError(
            f"the weights in {path} must fit the run's search space, but do not. The space, its plug-in or "
            f"config.yaml has changed since they were saved; torch finds:"
            f"{shown}{rest}"
        ) from error
