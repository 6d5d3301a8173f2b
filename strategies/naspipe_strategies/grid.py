"""The strategy grid: every architecture once, in the order of decisions and options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import Field

from naspipe.records import Direction
from naspipe.search.strategy import Outcome, Strategy
from naspipe.space import Architecture, Option, SearchSpace
from naspipe.space.space import exists


class GridStrategy(Strategy):
    """Exhaustive search, for small spaces; it evaluates as many architectures as the budget allows.

    The last decision changes fastest. After the last architecture the order begins again, and repeated proposals end
    the search.
    """

    learns = False

    def __init__(self, batch: Annotated[int, Field(ge=1)] = 16) -> None:
        """Choose how many are proposed at a time.

        Args:
            batch: Architectures in a generation, which the workers divide; it does not change the search.
        """
        self.batch = batch

    @property
    def generation_size(self) -> int:
        """The batch."""
        return self.batch

    def start(self, space: SearchSpace, directions: Sequence[Direction], seed: int) -> None:
        """Prepare to propose the first architecture."""
        self._space = space
        self._rest = self._valid()

    def _valid(self) -> Iterator[Architecture]:
        return (architecture for architecture in _all(self._space, {}) if self._space.is_valid(architecture))

    def ask(self) -> list[Architecture]:
        """Return the next valid architectures."""
        return [self._next() for _ in range(self.batch)]

    def _next(self) -> Architecture:
        architecture = next(self._rest, None)
        if architecture is None:
            self._rest = self._valid()
            architecture = next(self._rest)
        return architecture

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Ignore the outcomes."""


def _all(space: SearchSpace, chosen: dict[str, Option], place: int = 0) -> Iterator[Architecture]:
    """Yield all architectures that begin with the choices so far."""
    while place < len(space.decisions) and not exists(space.decisions[place], chosen):
        place += 1
    if place == len(space.decisions):
        yield Architecture(chosen)
        return
    decision = space.decisions[place]
    for option in decision.options:
        yield from _all(space, {**chosen, decision.name: option}, place + 1)
