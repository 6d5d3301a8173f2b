"""Distinct random architectures of a space."""

from __future__ import annotations

import random

from naspipe.space.architecture import Architecture
from naspipe.space.space import SearchSpace

MAX_REPEATS = 10_000
"""Repeated draws in a row after which a space counts as exhausted."""


def distinct_architectures(space: SearchSpace, generator: random.Random, count: int) -> list[Architecture]:
    """Draw distinct valid architectures, in the order of their first draw.

    With a larger ``count`` and an equal generator, the result begins with the same architectures.

    Args:
        space: The space.
        generator: The source of all draws, which are those of ``space.random_architecture``.
        count: Number of architectures; fewer are returned if the space has, or seems to have, no more.

    Raises:
        SpaceError: The validity rule refuses everything that was tried.
    """
    found: dict[Architecture, None] = {}
    repeats = 0
    # The size ignores the validity rule, so it is an upper bound.
    while len(found) < min(count, space.size) and repeats < MAX_REPEATS:
        architecture = space.random_architecture(generator)
        repeats = repeats + 1 if architecture in found else 0
        found[architecture] = None
    return list(found)
