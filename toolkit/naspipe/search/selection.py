"""Selection of trials: by Pareto fronts, by one objective, by the knee, or by conditions on metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from naspipe.errors import InputError
from naspipe.search.conditions import Condition
from naspipe.search.objective import Objective
from naspipe.search.trial import Trial, complete_trials, costs_of, dominates
from naspipe.wording import listing, nearest

KNEE = "knee"
"""The name of the knee of the Pareto front in ``pick_trials``."""


def sort_into_fronts(trials: Sequence[Trial], objectives: Sequence[Objective]) -> list[list[Trial]]:
    """Return the complete trials in fronts: the Pareto front, then the Pareto front of the others, and so on.

    Each front is sorted by the first objective, the best trial first; of equal trials the earlier one comes first. With
    one objective, the trials of a front have equal values.

    Source: the binary search of Zhang et al., "An Efficient Approach to Nondominated Sorting for
    Evolutionary Multiobjective Optimization", IEEE Transactions on Evolutionary Computation 19, 2015.
    """
    fronts: list[_Front] = []
    for trial in sorted(complete_trials(trials), key=lambda trial: (costs_of(trial, objectives), trial.index)):
        costs = costs_of(trial, objectives)
        place = _first_open(fronts, costs)
        if place == len(fronts):
            fronts.append([])
        fronts[place].append((costs, trial))
    return [[trial for _, trial in front] for front in fronts]


_Front = list[tuple[tuple[float, ...], Trial]]


def _first_open(fronts: Sequence[_Front], costs: tuple[float, ...]) -> int:
    """Return the index of the first front without a trial that dominates ``costs``."""
    # Dominating trials come earlier in the order. A trial dominated in one front is dominated in all earlier fronts.
    return bisect_left(fronts, True, key=lambda front: not any(dominates(other, costs) for other, _ in reversed(front)))


def best_trials(trials: Sequence[Trial], objectives: Sequence[Objective], count: int) -> list[Trial]:
    """Return the best complete trials: front by front, and within a front by the first objective.

    Args:
        trials: The trials of a search; failed ones are ignored.
        objectives: The objectives of the search.
        count: Number of trials, at least 1; fewer are returned if fewer are complete.

    Raises:
        InputError: ``count`` is less than one.
    """
    if count < 1:
        raise InputError(f"the number of best trials must be at least 1, but is {count}.")
    return [trial for front in sort_into_fronts(trials, objectives) for trial in front][:count]


def rank_by_knee(trials: Sequence[Trial], objectives: Sequence[Objective]) -> list[Trial]:
    """Return the Pareto front with its knee first: the trial beyond which a gain in one objective costs much in others.

    Every objective is scaled from 0 (its best value on the front) to 1 (its worst value there). The knee is the trial
    farthest from the line through the two ends of the front, on the side of the ideal point (0, 0); with more
    objectives, from the plane through the worst ends of the axes. This is the trial with the smallest sum of scaled
    objectives. The other trials are sorted by this sum, and then by the first objective.

    Sources: Das, "On characterizing the knee of the Pareto curve based on Normal-Boundary Intersection",
    Structural Optimization 18, 1999; for the sum, Chiu, Yen and Juan, "Minimum Manhattan Distance Approach to
    Multiple Criteria Decision Making in Multiobjective Optimization Problems", IEEE Transactions on Evolutionary
    Computation 20, 2016.

    Raises:
        InputError: There is only one objective, so the front has no knee.
    """
    if len(objectives) < 2:
        raise InputError(
            f"a knee needs several objectives, but there is one only. Pick the best in {objectives[0].name!r}."
        )
    fronts = sort_into_fronts(trials, objectives)
    if not fronts:
        return []
    front = fronts[0]
    columns = list(zip(*(costs_of(trial, objectives) for trial in front), strict=True))
    sums = [0.0] * len(front)
    for column in columns:
        low, high = min(column), max(column)
        if high > low:
            sums = [total + (cost - low) / (high - low) for total, cost in zip(sums, column, strict=True)]
    order = sorted(range(len(front)), key=sums.__getitem__)
    return [front[place] for place in order]


def pick_trials(trials: Sequence[Trial], objectives: Sequence[Objective], pick: str, count: int = 1) -> list[Trial]:
    """Return the best trials by one objective, or the first trials of ``rank_by_knee``.

    Args:
        trials: The trials of a search; failed ones are ignored.
        objectives: The objectives of the search.
        pick: ``knee``, or the name of an objective.
        count: Number of trials, at least 1; fewer are returned if fewer are complete, or on the front.

    Raises:
        InputError: There is no such objective or no knee, or ``count`` is less than one.
    """
    ranked = best_trials(trials, objectives, max(1, len(trials)))
    if count < 1:
        raise InputError(f"the number of picked trials must be at least 1, but is {count}.")
    if pick == KNEE:
        return rank_by_knee(ranked, objectives)[:count]
    names = [objective.name for objective in objectives]
    if pick not in names:
        known = [*names, KNEE] if len(names) > 1 else names
        raise InputError(f"there is no objective {pick!r} to pick by.{nearest(pick, known)} There is {listing(known)}.")
    objective = objectives[names.index(pick)]
    return sorted(ranked, key=lambda trial: objective.cost(trial.metrics[pick]))[:count]


def metrics_of(trials: Sequence[Trial]) -> list[str]:
    """Return the metrics of all trials, in the order of their first occurrence."""
    return list(dict.fromkeys(name for trial in trials for name in trial.metrics))


def satisfying(trials: Sequence[Trial], conditions: Sequence[Condition]) -> list[Trial]:
    """Return the complete trials that satisfy all conditions; a trial without the metric of a condition does not.

    Raises:
        InputError: There are complete trials, but none satisfies them; the message names the nearest miss.
    """
    complete = complete_trials(trials)
    found = [
        trial
        for trial in complete
        if all(c.metric in trial.metrics and c.holds(trial.metrics[c.metric]) for c in conditions)
    ]
    if not found and complete:
        raise InputError(
            f"no trial satisfies {' and '.join(map(str, conditions))}. {_nearest_miss(complete, conditions)}"
        )
    return found


def _nearest_miss(trials: Sequence[Trial], conditions: Sequence[Condition]) -> str:
    """Return a sentence about the trial with the smallest sum of misses."""
    able = [trial for trial in trials if all(c.metric in trial.metrics for c in conditions)]
    if not able:
        return "No trial has all of these metrics."
    least = min(able, key=lambda trial: (sum(c.miss(trial.metrics[c.metric]) for c in conditions), trial.index))
    values = ", ".join(
        f"{c.metric} {least.metrics[c.metric]:,.12g}" for c in conditions if not c.holds(least.metrics[c.metric])
    )
    return f"Trial {least.index} comes nearest: {values}."
