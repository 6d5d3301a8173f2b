"""Spaces without modules, for the checks of samplers and strategies."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NoReturn

from naspipe.errors import SpaceError
from naspipe.keys import keyed_random
from naspipe.space import Architecture, Decision, SearchSpace
from naspipe.space.covering import covering_architectures
from naspipe.testing.subject import SEED, Subject


class _Pure(SearchSpace):
    """Decisions without blocks."""

    def blocks(self) -> NoReturn:
        """Raise an error: there are no modules."""
        raise SpaceError("a space of the conformance kit has no modules, so it cannot be trained.")


class Plain(_Pure):
    """Six decisions of six options each."""

    def __init__(self) -> None:
        super().__init__(Decision(f"choice{i}", range(6)) for i in range(6))


class Uneven(_Pure):
    """Decisions with one to seven options, of every type."""

    def __init__(self) -> None:
        options = ("a", 2, 2.5, (1, "b"), None, False, "c")
        super().__init__(Decision(f"choice{i}", options[: i + 1]) for i in range(7))


class Conditional(_Pure):
    """Decisions that exist only under some options of others."""

    def __init__(self) -> None:
        depth = Decision("depth", (1, 2, 3, 4))
        kinds = [Decision(f"kind{i}", ("x", "y", "z"), when=("depth", range(i, 5))) for i in (2, 3, 4)]
        super().__init__([depth, *kinds, Decision("width", (8, 16, 32, 64), when=("kind3", ("x", "z")))])


class Ruled(_Pure):
    """Four decisions, with a rule that refuses half of the architectures."""

    def __init__(self) -> None:
        super().__init__(Decision(f"choice{i}", range(4)) for i in range(4))

    def is_valid(self, architecture: Architecture) -> bool:
        """Admit even sums."""
        return sum(int(str(option)) for option in architecture.options) % 2 == 0


PURE_SPACES: tuple[type[SearchSpace], ...] = (Plain, Uneven, Conditional, Ruled)


def spaces_for(subject: Subject) -> Iterator[SearchSpace]:
    """Yield the spaces on which a sampler or a strategy is checked: the given one, or those of the kit."""
    if subject.space_subject is not None:
        yield subject.space_subject.make()
        return
    for cls in PURE_SPACES:
        yield cls()  # type: ignore[call-arg]  # their constructors take no arguments


def some_architectures(space: SearchSpace, count: int) -> list[Architecture]:
    """Return random architectures, not necessarily distinct."""
    return [space.random_architecture(keyed_random(SEED, "conformance", index)) for index in range(count)]


def telling_architectures(space: SearchSpace, limit: int) -> list[Architecture]:
    """Return random architectures in which every option of every decision occurs, but at most ``limit``."""
    return list(itertools.islice(covering_architectures(space, keyed_random(SEED, "covering")), limit))
