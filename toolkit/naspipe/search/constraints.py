"""Constraints of a search: read from a configuration, checked before an evaluation, and made part of the space."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from naspipe import registry
from naspipe.errors import InputError
from naspipe.search.conditions import Condition, parse_condition
from naspipe.search.objective import read_directions
from naspipe.space import Architecture, SearchSpace
from naspipe.tasks.task import Task
from naspipe.wording import listing, nearest

MAX_TRIES = 2_000
"""Random architectures in a row that may violate constraints before the constraints count as impossible."""


def find_constraints(task: Task, texts: Sequence[str]) -> list[Condition]:
    """Return the conditions that every architecture must satisfy, each on a measure or on a reference to one.

    Raises:
        InputError: A text is malformed, or its metric is not a measure.
    """
    metrics, known = read_directions(task), registry.objectives.names()
    constraints = [parse_condition(text) for text in texts]
    for constraint in constraints:
        name = constraint.metric
        if name in known or ":" in name:
            continue
        late = f" {name!r} is known only once a subnet has been evaluated." if name in metrics else ""
        raise InputError(
            f"a constraint must be on a measure, which is known before a subnet is evaluated, but is on {name!r}."
            f"{late}{nearest(name, known)} There are {listing(known)}, or a reference: file.py:Class."
        )
    return constraints


class Feasibility:
    """Decides which architectures satisfy the constraints; each architecture is measured once."""

    def __init__(
        self,
        space: SearchSpace,
        constraints: Sequence[Condition],
        measure: Callable[[Architecture], Mapping[str, float]],
    ) -> None:
        """Prepare; nothing is measured yet.

        Args:
            space: The search space.
            constraints: All of them must hold.
            measure: Returns an architecture's values of the measures in the constraints.
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
        """A message with the nearest miss if no architecture so far satisfies the constraints; else an empty text."""
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
    """Return a space with the constraints in its validity rule, so that every strategy obeys them.

    Args:
        space: The search space; it is not changed.
        feasible: Tells whether a valid architecture satisfies the constraints.
    """
    plain: Any = type(space)

    class Constrained(plain):  # type: ignore[misc]  # its base is known only now
        max_tries: ClassVar[int] = MAX_TRIES

        def is_valid(self, architecture: Architecture) -> bool:
            return bool(plain.is_valid(self, architecture)) and feasible(architecture)

    # Messages name a space by its class.
    Constrained.__name__ = plain.__name__
    Constrained.__qualname__ = plain.__qualname__
    narrowed: SearchSpace = copy.copy(space)
    narrowed.__class__ = Constrained
    return narrowed
