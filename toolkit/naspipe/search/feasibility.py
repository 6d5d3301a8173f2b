"""Constraints: which architectures a search may propose at all, judged before anything is evaluated."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from naspipe.search.conditions import Condition
from naspipe.space import Architecture, SearchSpace

MAX_TRIES = 2_000
"""Random architectures that may violate a constraint in a row before a space counts as having none that does not."""


class Feasibility:
    """Judges architectures by conditions on their measures, each once."""

    def __init__(
        self,
        space: SearchSpace,
        constraints: Sequence[Condition],
        measure: Callable[[Architecture], Mapping[str, float]],
    ) -> None:
        """Judge nothing yet.

        Args:
            space: The search space.
            constraints: Every one must hold.
            measure: Gives the measures that they name.
        """
        self._space = space
        self._constraints = constraints
        self._measure = measure
        self._verdicts: dict[Architecture, bool] = {}
        self._nearest: tuple[float, Architecture, Mapping[str, float]] | None = None

    def __call__(self, architecture: Architecture) -> bool:
        """Tell whether an architecture satisfies all constraints."""
        if architecture not in self._verdicts:
            measured = self._measure(architecture)
            miss = sum(constraint.miss(measured[constraint.metric]) for constraint in self._constraints)
            holds = all(constraint.holds(measured[constraint.metric]) for constraint in self._constraints)
            self._verdicts[architecture] = holds
            if not holds and (self._nearest is None or miss < self._nearest[0]):
                self._nearest = (miss, architecture, measured)
        return self._verdicts[architecture]

    @property
    def explanation(self) -> str:
        """What is wrong if none of what was judged is feasible, with the nearest miss; else an empty text."""
        if any(self._verdicts.values()) or self._nearest is None:
            return ""
        _, architecture, measured = self._nearest
        values = ", ".join(f"{c.metric} {measured[c.metric]:g}" for c in self._constraints)
        return (
            f"none of {len(self._verdicts):,} architectures that were tried satisfies search.constraints, "
            f"{' and '.join(map(str, self._constraints))}. The nearest miss has {values}: "
            f"{self._space.format(architecture)}. Loosen the constraints."
        )


def constrained(space: SearchSpace, feasible: Callable[[Architecture], bool]) -> SearchSpace:
    """Return a space whose validity rule also asks for feasibility, so that every strategy obeys it.

    Args:
        space: The search space; it is left as it is.
        feasible: Judges valid architectures.
    """
    plain: Any = type(space)

    class Constrained(plain):  # type: ignore[misc]  # its base is known only now
        max_tries: ClassVar[int] = MAX_TRIES

        def is_valid(self, architecture: Architecture) -> bool:
            return bool(plain.is_valid(self, architecture)) and feasible(architecture)

    # What names the space in messages.
    Constrained.__name__ = plain.__name__
    Constrained.__qualname__ = plain.__qualname__
    narrowed: SearchSpace = copy.copy(space)
    narrowed.__class__ = Constrained
    return narrowed
