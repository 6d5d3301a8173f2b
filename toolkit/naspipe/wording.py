"""What pydantic finds wrong, in words for people who write YAML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NOUNS = {
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "dict_type": "must be a mapping",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "set_type": "must be a list",
    "missing": "must be given, but is missing",
}


def fault_of(detail: Mapping[str, Any], example: str = "") -> str:
    """Return what must hold and what was given, as a part of a sentence.

    Args:
        detail: One of the errors of a ``ValidationError``.
        example: What a right value looks like, or an empty text.
    """
    kind = detail["type"]
    text = _NOUNS.get(kind, str(detail["msg"]).removeprefix("Value error, ").replace("Input should be", "must be"))
    such = f" such as {example}" if example else ""
    return f"{text}{such}" if kind == "missing" else f"{text}{such}, but got {detail['input']!r}"
