"""A plug-in with its parameters as one argument of a command, as in ``gpipe:bulk=4``."""

from __future__ import annotations

from typing import Any

import yaml


def parse_plugin_text(text: str) -> tuple[str, dict[str, Any]]:
    """Return name and parameters of a plug-in in the format ``gpipe:bulk=4``; the values are YAML."""
    parts = text.split(":")
    name = ":".join(part for part in parts if "=" not in part)
    parameters = dict(part.split("=", 1) for part in parts if "=" in part)
    return name, {key: yaml.safe_load(value) for key, value in parameters.items()}
