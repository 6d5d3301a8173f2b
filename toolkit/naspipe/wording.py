"""Wording of error messages: the nearest known words, lists, and pydantic's findings."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
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
    """Return what must hold and what was given, to complete a sentence.

    Args:
        detail: One of the errors of a ``ValidationError``.
        example: A correct value, or an empty text.
    """
    kind = detail["type"]
    text = _NOUNS.get(kind, str(detail["msg"]).removeprefix("Value error, ").replace("Input should be", "must be"))
    such = f" such as {example}" if example else ""
    return f"{text}{such}" if kind == "missing" else f"{text}{such}, but got {detail['input']!r}"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the known words nearest to ``word``, or an empty text."""
    # A word that differs in case only is the only suggestion.
    folded = {other.casefold(): other for other in known}
    same = word.casefold() in folded
    close = difflib.get_close_matches(word.casefold(), folded, n=1 if same else 2, cutoff=0.6)
    if not close:
        return ""
    matches = [folded[other] for other in close]
    return f" Did you mean {' or '.join(repr(match) for match in matches)}?"


def listing(known: Iterable[str]) -> str:
    """Return the known words as a list in a sentence, or the word "nothing"."""
    return ", ".join(known) or "nothing"
