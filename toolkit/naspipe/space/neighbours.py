"""Neighbours: architectures that differ in one decision, and in the decisions that exist only because of it."""

from __future__ import annotations

import random
from collections.abc import Iterator

from naspipe.space.architecture import Architecture
from naspipe.space.decision import Decision, Option
from naspipe.space.space import SearchSpace, exists


def neighbours(space: SearchSpace, architecture: Architecture, generator: random.Random) -> Iterator[Architecture]:
    """Yield the valid architectures that differ in one decision, in random order.

    Decisions that exist only because of the change are drawn uniformly.

    Args:
        space: The space.
        architecture: An architecture of the space.
        generator: The source of the order and of new decisions.
    """
    changes = [
        (decision, option)
        for decision in space.decisions
        if decision.name in architecture
        for option in decision.options
        if option != architecture[decision.name]
    ]
    generator.shuffle(changes)
    for decision, option in changes:
        changed = _change(space, architecture, decision, option, generator)
        if space.is_valid(changed):
            yield changed


def mutate(space: SearchSpace, architecture: Architecture, generator: random.Random) -> Architecture | None:
    """Return a random neighbour: a uniform draw of a decision, then of another option for it; None if it is not valid.

    Args:
        space: The space.
        architecture: An architecture of the space.
        generator: The source of all draws.
    """
    choices = [d for d in space.decisions if d.name in architecture and len(d.options) > 1]
    if not choices:
        return None
    decision = generator.choice(choices)
    option = generator.choice([option for option in decision.options if option != architecture[decision.name]])
    changed = _change(space, architecture, decision, option, generator)
    return changed if space.is_valid(changed) else None


def _change(
    space: SearchSpace, architecture: Architecture, decision: Decision, option: Option, generator: random.Random
) -> Architecture:
    chosen: dict[str, Option] = {}
    for other in space.decisions:
        if not exists(other, chosen):
            continue
        if other.name == decision.name:
            chosen[other.name] = option
        elif other.name in architecture:
            chosen[other.name] = architecture[other.name]
        else:
            chosen[other.name] = generator.choice(other.options)
    return Architecture(chosen)
