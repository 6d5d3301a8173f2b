"""Objectives: the metrics and measures that a search optimises, found by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from naspipe import registry
from naspipe.config.resolve import construct
from naspipe.config.schema import SearchConfig
from naspipe.errors import InputError, PluginError, TaskError
from naspipe.search.conditions import Condition
from naspipe.search.measure import Measure, as_number
from naspipe.tasks.task import Direction, Task
from naspipe.usercode import calling
from naspipe.wording import listing, nearest

PARAMETERS = "parameters"
"""The measure that every subnet gets."""


@dataclass(frozen=True)
class Objective:
    """A metric that a search optimises: one of the task, or a measure.

    Attributes:
        name: Name of the metric.
        direction: ``maximize`` or ``minimize``.
    """

    name: str
    direction: Direction

    def cost(self, value: float) -> float:
        """Return the value with the sign for which smaller is better."""
        return value if self.direction == "minimize" else -value


def read_directions(task: Task) -> dict[str, Direction]:
    """Return the metrics of a task that can be objectives, with their directions.

    Raises:
        TaskError: The task's ``directions`` are malformed.
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


def find_objectives(task: Task, names: Sequence[str], find: Callable[[str], Measure] | None = None) -> list[Objective]:
    """Return the objectives of these names: metrics of the task, and measures.

    Args:
        task: Gives the metrics.
        names: Names of metrics and measures, or references to measures.
        find: Returns a measure by its name; by default ``find_measure``.

    Raises:
        TaskError: The task's ``directions`` are malformed.
        InputError: A name is unknown, is given twice, or belongs to both a metric and a measure.
    """
    metrics, known = read_directions(task), registry.objectives.names()
    found = []
    for name in names:
        if name in metrics and name in known:
            raise InputError(
                f"objective {name!r} is both a metric of {type(task).__name__} and a measure. Rename the metric."
            )
        if name in metrics:
            found.append(Objective(name, metrics[name]))
            continue
        if name not in known and ":" not in name:
            all_names = [*metrics, *known]
            default = SearchConfig.model_fields["objectives"].default
            remedy = (
                f" {name!r} is the default: set search.objectives to one or more of these."
                if list(names) == default
                else ""
            )
            raise InputError(
                f"there is no objective {name!r}.{nearest(name, all_names)} There are the metrics of the task, "
                f"{listing(metrics)}, and the measures {listing(known)}, or a reference: file.py:Class.{remedy}"
            )
        found.append(Objective(measure_name(name), (find or find_measure)(name).direction))
    if len({objective.name for objective in found}) != len(names):
        raise InputError(f"objectives must differ, but are {list(names)!r}.")
    return found


def measure_name(name: str) -> str:
    """Return the name of a measure's metric: for a reference, the name of the class or function."""
    return name.rpartition(":")[2]


def find_measure(name: str) -> Measure:
    """Return a measure by its registered name, or by a reference.

    Raises:
        PluginError: It is unknown, cannot be imported, or has no direction.
    """
    measure: Measure = construct(registry.objectives, name, {})
    direction: object = getattr(measure, "direction", None)
    if direction not in get_args(Direction):
        raise PluginError(
            f"objective {name!r} must have a direction: its attribute direction must be 'maximize' or "
            f"'minimize', but is {direction!r}."
        )
    return measure


def find_measures(
    task: Task,
    objectives: Sequence[str],
    constraints: Sequence[Condition],
    find: Callable[[str], Measure] = find_measure,
) -> dict[str, Measure]:
    """Return all measures that a search needs, by the names of their metrics.

    Args:
        task: Gives the metrics, which are not measures.
        objectives: Names of the objectives, as the configuration gives them.
        constraints: The result of ``find_constraints``.
        find: Returns a measure by its name.

    Raises:
        PluginError: A measure cannot be found or imported.
    """
    metrics = read_directions(task)
    names = [PARAMETERS, *(name for name in objectives if name not in metrics), *(c.metric for c in constraints)]
    return {measure_name(name): find(name) for name in dict.fromkeys(names)}


def read_metrics(metrics: Mapping[str, object]) -> dict[str, int | float]:
    """Return those metrics of a task that are finite numbers, as numbers of Python."""
    numbers = {str(name): as_number(value) for name, value in metrics.items()}
    return {name: n for name, n in numbers.items() if n is not None and math.isfinite(n)}


def require_objectives(metrics: Mapping[str, object], objectives: Sequence[Objective]) -> None:
    """Raise an error unless every objective is a finite number.

    Raises:
        ValueError: An objective is missing, is not a number, or is not finite.
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
