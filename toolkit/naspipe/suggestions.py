"""The nearest right word for a wrong one, as error messages name it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the known words nearest to ``word``, or an empty text."""
    matches = difflib.get_close_matches(word, list(known), n=2, cutoff=0.6)
    if not matches:
        return ""
    return f" Did you mean {' or '.join(repr(match) for match in matches)}?"


def listing(known: Iterable[str]) -> str:
    """Return the known words as a list in a sentence, or the word "nothing"."""
    return ", ".join(known) or "nothing"
