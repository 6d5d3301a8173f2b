"""Distinct random architectures of a space."""

from __future__ import annotations

import random

from naspipe.space.architecture import Architecture
from naspipe.space.space import SearchSpace

MAX_REPEATS = 10_000
"""Known architectures drawn in a row before a space counts as used up."""


def distinct_architectures(space: SearchSpace, generator: random.Random, count: int) -> list[Architecture]:
    """Draw distinct valid architectures, in the order of their first draw; more are the same and further ones.

    Args:
        space: The space.
        generator: What they are drawn from, each as ``space.random_architecture`` draws it.
        count: How many; fewer are returned if the space has, or seems to have, no more.

    Raises:
        SpaceError: The validity rule refuses everything that was tried.
    """
    found: dict[Architecture, None] = {}
    repeats = 0
    # The size counts what a validity rule refuses too, so it bounds what there is.
    while len(found) < min(count, space.size) and repeats < MAX_REPEATS:
        architecture = space.random_architecture(generator)
        repeats = repeats + 1 if architecture in found else 0
        found[architecture] = None
    return list(found)
