"""Optional packages of the text tasks: those of the extra ``text``."""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

from naspipe.errors import TaskError

EXTRA = "text"
"""The name of the extra, as in ``pip install 'naspipe[text]'``."""


def import_extra(module: str, use: str) -> Any:
    """Import a package of the extra.

    Args:
        module: Name of the module.
        use: The feature that needs it, as the subject of a sentence.

    Raises:
        TaskError: It is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise TaskError(
            f"{use} needs the package {module.partition('.')[0]!r}, which cannot be imported: {error}. "
            f"Install it: pip install 'naspipe[{EXTRA}]'."
        ) from error


def version_of(package: str) -> str:
    """Return the version of an installed package, for the key of a cache."""
    return importlib.metadata.version(package)
