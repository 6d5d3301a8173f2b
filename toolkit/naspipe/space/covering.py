"""Covering: a few architectures in which every option of every decision occurs."""

from __future__ import annotations

import random
from collections.abc import Iterator

from naspipe.space.architecture import Architecture
from naspipe.space.space import SearchSpace

MAX_DRAWS = 1_000
"""Random architectures that are searched for the options that are still missing."""


def covering_architectures(space: SearchSpace, generator: random.Random) -> Iterator[Architecture]:
    """Yield valid architectures until every option of every decision has occurred, or ``MAX_DRAWS`` did not find it.

    Without a validity rule and conditional decisions, their number is the number of options of the largest decision.

    Args:
        space: The space.
        generator: The source of all random draws.

    Raises:
        SpaceError: The validity rule refuses everything that was tried.
    """
    missing = {(decision.name, option) for decision in space.decisions for option in decision.options}
    orders = [generator.sample(range(len(decision.options)), len(decision.options)) for decision in space.decisions]
    longest = max(map(len, orders))
    for draw in range(longest + MAX_DRAWS):
        architecture = space.from_indices([order[draw % len(order)] for order in orders])
        if draw >= longest or (space.has_rule and not space.is_valid(architecture)):
            architecture = space.random_architecture(generator)
        found = missing & set(architecture.items())
        if draw < longest or found:
            yield architecture
        missing -= found
        if not missing:
            return
