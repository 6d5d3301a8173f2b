"""What a configuration says of constraints and measures, checked and found."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from naspipe import registry
from naspipe.errors import InputError
from naspipe.search.conditions import Condition, parse_condition
from naspipe.search.measure import Measure
from naspipe.search.objective import PARAMETERS, find_measure, measure_name, read_directions
from naspipe.tasks.task import Task
from naspipe.wording import listing, nearest


def find_constraints(task: Task, texts: Sequence[str]) -> list[Condition]:
    """Return the conditions that candidates must satisfy; the metrics they name may be references.

    Raises:
        InputError: One is malformed, or is not on a measure.
    """
    metrics, known = read_directions(task), registry.objectives.names()
    constraints = [parse_condition(text) for text in texts]
    for constraint in constraints:
        name = constraint.metric
        if name in known or ":" in name:
            continue
        late = f" {name!r} is known only once a candidate has been evaluated." if name in metrics else ""
        raise InputError(
            f"a constraint must be on a measure, which is taken before a candidate is evaluated, but is on {name!r}."
            f"{late}{nearest(name, known)} There are {listing(known)}, or a reference: file.py:Class."
        )
    return constraints


def find_measures(
    task: Task,
    objectives: Sequence[str],
    constraints: Sequence[Condition],
    find: Callable[[str], Measure] = find_measure,
) -> dict[str, Measure]:
    """Return every measure that a search takes, by the name of its metric.

    Args:
        task: Its metrics are no measures.
        objectives: Names of the objectives, as the configuration gives them.
        constraints: As ``find_constraints`` returned them.
        find: Returns a measure by its name.

    Raises:
        PluginError: One cannot be found or imported.
    """
    metrics = read_directions(task)
    names = [PARAMETERS, *(name for name in objectives if name not in metrics), *(c.metric for c in constraints)]
    return {measure_name(name): find(name) for name in dict.fromkeys(names)}
