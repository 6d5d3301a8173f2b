"""Objectives: what a search optimises, and how trials compare."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from naspipe.errors import InputError
from naspipe.suggestions import listing, nearest
from naspipe.tasks.task import Direction, Task

PARAMETERS = "parameters"
"""The objective that every task has: parameters of the subnet, fewer is better."""


@dataclass(frozen=True)
class Objective:
    """A metric that a search optimises.

    Attributes:
        name: Name of the metric.
        direction: Which way is better.
    """

    name: str
    direction: Direction

    def cost(self, value: float) -> float:
        """Return the value with its sign such that less is better."""
        return value if self.direction == "minimize" else -value


def find_objectives(task: Task, names: Sequence[str]) -> list[Objective]:
    """Return the objectives of these names.

    Raises:
        InputError: A name is unknown, or given twice.
    """
    known: dict[str, Direction] = {**task.directions, PARAMETERS: "minimize"}
    for name in names:
        if name not in known:
            raise InputError(
                f"there is no objective {name!r}.{nearest(name, known)} This task has {listing(known)}."
            )
    if len(set(names)) != len(names):
        raise InputError(f"objectives must differ, but are {list(names)!r}.")
    return [Objective(name, known[name]) for name in names]


def read_values(metrics: Mapping[str, object], objectives: Sequence[Objective]) -> list[float]:
    """Return the objectives' values.

    Raises:
        ValueError: One is missing, is no number, or is not finite; it says which and what it is.
    """
    values = []
    for objective in objectives:
        value = metrics.get(objective.name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(
                f"objective {objective.name!r} must be a number, but is {value!r} "
                f"of type {type(value).__name__}"
            )
        if not math.isfinite(value):
            raise ValueError(f"objective {objective.name!r} must be finite, but is {value!r}")
        values.append(float(value))
    return values
