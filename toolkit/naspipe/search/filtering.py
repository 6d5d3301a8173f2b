"""Filtering: which of a search's trials satisfy conditions on their metrics, and which miss them by least."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from naspipe.errors import InputError
from naspipe.search.condition import Condition, parse_condition
from naspipe.search.trial import Trial, complete_trials
from naspipe.suggestions import listing, nearest


def metrics_of(trials: Sequence[Trial]) -> list[str]:
    """Return every metric that some trial has, in the order in which they appear."""
    return list(dict.fromkeys(name for trial in trials for name in trial.metrics))


def parse_conditions(texts: Iterable[str], metrics: Sequence[str]) -> list[Condition]:
    """Read conditions, given one by one or joined by commas or "and".

    Args:
        texts: As in ``["parameters<1e6, accuracy>=0.9"]``.
        metrics: The metrics there are.

    Raises:
        InputError: A text is no condition, or names an unknown metric; it lists those there are.
    """
    return [_parse(part, metrics) for text in texts for part in re.split(r",|\sand\s", text)]


def _parse(text: str, metrics: Sequence[str]) -> Condition:
    try:
        condition = parse_condition(text)
    except InputError as error:
        raise InputError(
            f"{error} Conditions are joined by a comma or 'and'; thousands have no comma. The metrics are "
            f"{listing(metrics)}."
        ) from None
    name = condition.metric
    if name not in metrics:
        raise InputError(f"there is no metric {name!r}.{nearest(name, metrics)} The metrics are {listing(metrics)}.")
    return condition


def satisfying(trials: Sequence[Trial], conditions: Sequence[Condition]) -> list[Trial]:
    """Return the complete trials that satisfy every condition; one without the metric does not.

    Raises:
        InputError: There are complete trials, but none does; it says which misses by least.
    """
    complete = complete_trials(trials)
    found = [
        trial
        for trial in complete
        if all(c.metric in trial.metrics and c.holds(trial.metrics[c.metric]) for c in conditions)
    ]
    if complete and not found:
        wanted = " and ".join(map(str, conditions))
        raise InputError(f"no trial satisfies {wanted}. {_nearest_miss(complete, conditions)}")
    return found


def _nearest_miss(trials: Sequence[Trial], conditions: Sequence[Condition]) -> str:
    """Return which trial misses by least, all misses added up, and what its values are."""
    able = [trial for trial in trials if all(c.metric in trial.metrics for c in conditions)]
    if not able:
        return "No trial has all of these metrics."
    least = min(able, key=lambda trial: (sum(c.miss(trial.metrics[c.metric]) for c in conditions), trial.index))
    values = ", ".join(
        f"{c.metric} {least.metrics[c.metric]:,.12g}" for c in conditions if not c.holds(least.metrics[c.metric])
    )
    return f"Trial {least.index} comes nearest: {values}."
