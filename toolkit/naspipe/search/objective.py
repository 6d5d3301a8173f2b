"""Objectives: what a search optimises, and how trials compare."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from naspipe.config.schema import SearchConfig
from naspipe.errors import InputError, TaskError
from naspipe.suggestions import listing, nearest
from naspipe.tasks.task import Direction, Task
from naspipe.usercode import calling

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


def read_directions(task: Task) -> dict[str, Direction]:
    """Return the metrics of a task that can be objectives, and which way is better.

    Raises:
        TaskError: ``directions`` is not what a task must say.
    """
    name = f"{type(task).__name__}.directions"
    with calling(name, TaskError):
        directions = task.directions
    must = f"{name} must be a mapping from metrics to 'maximize' or 'minimize'"
    if callable(directions):
        raise TaskError(f"{must}, but is a method. Put @property above it.")
    if not isinstance(directions, Mapping):
        raise TaskError(f"{must}, but is {directions!r} of type {type(directions).__name__}.")
    for metric, direction in directions.items():
        if not isinstance(metric, str) or direction not in get_args(Direction):
            raise TaskError(f"{must}, but maps {metric!r} to {direction!r}.")
    return dict(directions)


def find_objectives(task: Task, names: Sequence[str]) -> list[Objective]:
    """Return the objectives of these names.

    Raises:
        TaskError: The task does not say which way its metrics are better.
        InputError: A name is unknown, or given twice.
    """
    known: dict[str, Direction] = {**read_directions(task), PARAMETERS: "minimize"}
    default = SearchConfig.model_fields["objectives"].default
    for name in names:
        if name not in known:
            remedy = (
                f" {name!r} is the default: set search.objectives to one or more of these."
                if list(names) == default
                else ""
            )
            raise InputError(
                f"there is no objective {name!r}.{nearest(name, known)} This task has {listing(known)}.{remedy}"
            )
    if len(set(names)) != len(names):
        raise InputError(f"objectives must differ, but are {list(names)!r}.")
    return [Objective(name, known[name]) for name in names]


def read_metrics(metrics: Mapping[str, object]) -> dict[str, int | float]:
    """Return what counts of a task's metrics: the finite numbers, as Python's own."""
    numbers = {str(name): as_number(value) for name, value in metrics.items()}
    return {name: n for name, n in numbers.items() if n is not None and math.isfinite(n)}


def require_objectives(metrics: Mapping[str, object], objectives: Sequence[Objective]) -> None:
    """Raise an error unless every objective is a finite number.

    Raises:
        ValueError: One is missing, is no number, or is not finite; it says which and what it is.
    """
    for objective in objectives:
        if objective.name not in metrics:
            raise ValueError(f"objective {objective.name!r} is missing: the task's metrics are {listing(metrics)}")
        value = metrics[objective.name]
        number = as_number(value)
        if number is None:
            raise ValueError(
                f"objective {objective.name!r} must be a number, but is {value!r} of type {type(value).__name__}"
            )
        if not math.isfinite(number):
            raise ValueError(f"objective {objective.name!r} must be finite, but is {number!r}")


def as_number(value: object) -> int | float | None:
    """Return a number, a scalar of NumPy or a tensor of no dimensions as Python's own; else None."""
    if not isinstance(value, (int, float)) and getattr(value, "shape", None) == ():
        value = value.item()  # type: ignore[attr-defined]  # whatever has a shape of this kind has it
    if isinstance(value, bool):
        return None
    return int(value) if isinstance(value, int) else float(value) if isinstance(value, float) else None
