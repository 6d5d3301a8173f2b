"""Selection of trials: fronts, the best, the knee."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naspipe import Architecture, InputError
from naspipe.search.objective import Objective
from naspipe.search.selection import best_trials, pick_trials, rank_by_knee, sort_into_fronts
from naspipe.search.trial import Trial, pareto_front

ACCURACY, PARAMETERS = Objective("accuracy", "maximize"), Objective("parameters", "minimize")
BOTH = [ACCURACY, PARAMETERS]


def make(rows: Sequence[Sequence[float] | None]) -> list[Trial]:
    """Return trials of these values of a, b, ...; None is a failed one."""
    return [
        Trial(index, Architecture({"x": index}), {}, "broken")
        if row is None
        else Trial(index, Architecture({"x": index}), dict(zip("abc", row, strict=False)))
        for index, row in enumerate(rows)
    ]


def two(*rows: tuple[float, float]) -> list[Trial]:
    return [
        Trial(index, Architecture({"x": index}), {"accuracy": accuracy, "parameters": parameters})
        for index, (accuracy, parameters) in enumerate(rows)
    ]


def indices(trials: Sequence[Trial]) -> list[int]:
    return [trial.index for trial in trials]


@st.composite
def searches(draw: st.DrawFn) -> tuple[list[Trial], list[Objective]]:
    directions = draw(st.lists(st.sampled_from(["maximize", "minimize"]), min_size=1, max_size=3))
    row = st.tuples(*[st.integers(0, 4)] * len(directions))
    trials = make(draw(st.lists(st.none() | row, max_size=30)))
    return trials, [Objective(name, way) for name, way in zip("abc", directions, strict=False)]


@given(searches())
def test_fronts_are_what_is_left_when_the_fronts_before_are_taken_away(
    search: tuple[list[Trial], list[Objective]],
) -> None:
    trials, objectives = search

    def beaten(trial: Trial, by: Trial) -> bool:
        pairs = [(o.cost(trial.metrics[o.name]), o.cost(by.metrics[o.name])) for o in objectives]
        return all(other <= own for own, other in pairs) and any(other < own for own, other in pairs)

    rest = [trial for trial in trials if trial.reason is None]
    for front in sort_into_fronts(trials, objectives):
        expected = [trial for trial in rest if not any(beaten(trial, other) for other in rest)]
        assert set(indices(front)) == set(indices(expected))
        assert front == pareto_front(rest, objectives)
        first = objectives[0]
        assert [first.cost(t.metrics["a"]) for t in front] == sorted(first.cost(t.metrics["a"]) for t in front)
        rest = [trial for trial in rest if trial not in front]
    assert rest == []


@given(searches())
def test_the_best_are_the_fronts_one_after_another(search: tuple[list[Trial], list[Objective]]) -> None:
    trials, objectives = search
    ranked = [trial for front in sort_into_fronts(trials, objectives) for trial in front]
    for count in (1, 3, 100):
        assert best_trials(trials, objectives, count) == ranked[:count]


def test_of_one_objective_the_best_are_the_best_in_it_and_the_earlier_of_equals() -> None:
    trials = make([(0.5,), None, (0.9,), (0.9,), (0.1,)])
    assert indices(best_trials(trials, [Objective("a", "maximize")], 3)) == [2, 3, 0]
    assert indices(best_trials(trials, [Objective("a", "minimize")], 2)) == [4, 0]
    assert indices(best_trials(trials, [Objective("a", "minimize")], 9)) == [4, 0, 2, 3]


def test_the_knee_is_farthest_from_the_line_through_the_ends_of_the_front() -> None:
    # Scaled, the front is (0, 1), (0.1, 0.3), (0.5, 0.2), (1, 0); the last trial is not on it.
    trials = two((1.0, 1100), (0.9, 400), (0.5, 300), (0.0, 100), (0.4, 500))
    assert indices(rank_by_knee(trials, BOTH)) == [1, 2, 0, 3]
    distances = [abs(x + y - 1) for x, y in ((0, 1), (0.1, 0.3), (0.5, 0.2), (1, 0))]
    assert distances.index(max(distances)) == 1
    assert indices(pick_trials(trials, BOTH, "knee")) == [1]
    assert indices(pick_trials(trials, BOTH, "knee", 9)) == [1, 2, 0, 3]


def test_the_knee_does_not_depend_on_the_units_of_an_objective() -> None:
    rows = [(1.0, 1100), (0.9, 400), (0.5, 300), (0.0, 100)]
    scaled = [(1000 * accuracy - 3, parameters / 4096) for accuracy, parameters in rows]
    assert indices(rank_by_knee(two(*rows), BOTH)) == indices(rank_by_knee(two(*scaled), BOTH))


def test_a_front_of_equal_trials_or_of_none_has_a_knee_or_none() -> None:
    assert indices(rank_by_knee(two((0.5, 10), (0.5, 10)), BOTH)) == [0, 1]
    assert rank_by_knee(make([None]), BOTH) == []


def test_picking_by_an_objective_ranks_every_trial_by_it_and_equals_by_the_fronts() -> None:
    trials = two((0.5, 10), (0.9, 10), (0.9, 5), (0.1, 7))
    assert indices(pick_trials(trials, BOTH, "accuracy", 3)) == [2, 1, 0]
    assert indices(pick_trials(trials, BOTH, "parameters", 4)) == [2, 3, 1, 0]


def test_what_cannot_be_picked_says_what_can() -> None:
    trials = two((0.5, 10))
    with pytest.raises(
        InputError, match=r"no objective 'params'.* Did you mean 'parameters'\?.*accuracy, parameters, k"
    ):
        pick_trials(trials, BOTH, "params")
    with pytest.raises(InputError, match=r"there is one only\. Pick the best in 'accuracy'"):
        pick_trials(trials, [ACCURACY], "knee")
    with pytest.raises(InputError, match="must be at least 1, but is 0"):
        best_trials(trials, BOTH, 0)
    with pytest.raises(InputError, match="must be at least 1, but is -1"):
        pick_trials(trials, BOTH, "knee", -1)
