"""Spaces without modules, which samplers and strategies are checked on."""

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
    """Decisions alone."""

    def blocks(self) -> NoReturn:
        """Refuse: there are no modules."""
        raise SpaceError("a space of the conformance kit has no modules: it can be drawn from, not trained.")


class Plain(_Pure):
    """Six decisions of six options each."""

    def __init__(self) -> None:
        super().__init__(Decision(f"choice{i}", range(6)) for i in range(6))


class Uneven(_Pure):
    """Decisions of one option to seven, of every type."""

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
    """Four decisions, of which a rule refuses half of the architectures."""

    def __init__(self) -> None:
        super().__init__(Decision(f"choice{i}", range(4)) for i in range(4))

    def is_valid(self, architecture: Architecture) -> bool:
        """Admit even sums."""
        return sum(int(str(option)) for option in architecture.options) % 2 == 0


PURE_SPACES: tuple[type[SearchSpace], ...] = (Plain, Uneven, Conditional, Ruled)


def spaces_for(subject: Subject) -> Iterator[SearchSpace]:
    """Yield the spaces that a sampler or a strategy is checked on: the one that is given, or those of the kit."""
    if subject.space_subject is not None:
        yield subject.space_subject.make()
        return
    for cls in PURE_SPACES:
        yield cls()  # type: ignore[call-arg]  # each makes its own decisions


def some_architectures(space: SearchSpace, count: int) -> list[Architecture]:
    """Return random architectures, some of which may be equal."""
    return [space.random_architecture(keyed_random(SEED, "conformance", index)) for index in range(count)]


def telling_architectures(space: SearchSpace, limit: int) -> list[Architecture]:
    """Return random architectures that show every option of every decision, or as many as a limit allows."""
    return list(itertools.islice(covering_architectures(space, keyed_random(SEED, "covering")), limit))
