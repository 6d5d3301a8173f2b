"""The nearest right word for a wrong one, as error messages name it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the known words nearest to ``word``, or an empty text."""
    # Whoever writes sgd means SGD.
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
