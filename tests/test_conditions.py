"""Conditions on metrics: what is read, what is refused, and who misses by least."""

from __future__ import annotations

import pytest

from naspipe import Architecture, InputError
from naspipe.search.conditions import Condition, parse_conditions
from naspipe.search.selection import metrics_of, satisfying
from naspipe.search.trial import Trial

METRICS = ["accuracy", "parameters", "top 5, %"]


def trial(index: int, **metrics: float) -> Trial:
    return Trial(index, Architecture({"x": index}), metrics, None if metrics else "broken")


TRIALS = [trial(0, accuracy=0.8, parameters=1000), trial(1), trial(2, accuracy=0.9, parameters=2000, latency=3.5)]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["parameters<1e6"], [("parameters", "<", 1e6)]),
        ([" parameters  <=  1000 "], [("parameters", "<=", 1000.0)]),
        (["accuracy>=.9,parameters<5"], [("accuracy", ">=", 0.9), ("parameters", "<", 5.0)]),
        (["accuracy > -1.5e-3 and parameters == 7."], [("accuracy", ">", -0.0015), ("parameters", "==", 7.0)]),
        (["accuracy>0", "accuracy<1"], [("accuracy", ">", 0.0), ("accuracy", "<", 1.0)]),
    ],
)
def test_conditions_are_read_alone_or_joined(texts: list[str], expected: list[tuple[str, str, float]]) -> None:
    assert parse_conditions(texts, METRICS) == [Condition(*each) for each in expected]


@pytest.mark.parametrize(
    "text",
    ["", "parameters", "parameters<", "<5", "parameters=5", "parameters=<5", "parameters<>5", "parameters<5<6",
     "parameters<nan", "parameters<-inf", "parameters<1_000", "parameters<1e999",
     "parameters<inf", "parameters<1e", "parameters<0x10", "parameters<five",
     "parameters<5 or accuracy>0", "parameters<5,", "parameters<100,000", "parameters!=5",
     "__import__('os')<1 2", "5>parameters"],
)  # fmt: skip
def test_what_is_no_condition_is_refused_with_an_example_and_the_metrics(text: str) -> None:
    with pytest.raises(InputError, match=r"(?s)must compare .*The metrics are accuracy, "):
        parse_conditions([text], METRICS)


def test_an_unknown_metric_is_refused_with_the_nearest_and_the_known_ones() -> None:
    with pytest.raises(
        InputError, match=r"no metric 'params'\. Did you mean 'parameters'\? The metrics are accuracy, "
    ):
        parse_conditions(["accuracy>0.5 and params<5"], METRICS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("parameters<1000", []), ("parameters<=1000", [0]), ("parameters>1000", [2]), ("parameters>=1000", [0, 2]),
     ("parameters==2000", [2]), ("latency<9", [2]), ("accuracy>0.85,parameters<1500", [])],
)  # fmt: skip
def test_each_comparison_means_what_it_says_and_failed_trials_never_satisfy(text: str, expected: list[int]) -> None:
    conditions = parse_conditions([text], metrics_of(TRIALS))
    if expected:
        assert [found.index for found in satisfying(TRIALS, conditions)] == expected
    else:
        with pytest.raises(InputError, match="no trial satisfies"):
            satisfying(TRIALS, conditions)


def test_if_nothing_satisfies_the_nearest_miss_is_named() -> None:
    def miss(text: str) -> str:
        with pytest.raises(InputError) as caught:
            satisfying(TRIALS, parse_conditions([text], metrics_of(TRIALS)))
        return str(caught.value)

    assert miss("parameters<1000") == "no trial satisfies parameters < 1,000. Trial 0 comes nearest: parameters 1,000."
    # Trial 0 is off by 1/9 of a bound, trial 2 by a third of one.
    assert miss("accuracy>=0.9 and parameters<1500").endswith("Trial 0 comes nearest: accuracy 0.8.")
    assert miss("accuracy>0.95,parameters>=9000").endswith("Trial 2 comes nearest: accuracy 0.9, parameters 2,000.")
    assert miss("latency<0").endswith("Trial 2 comes nearest: latency 3.5.")
    halves = [trial(0, a=1.0), trial(1, b=1.0)]
    with pytest.raises(InputError, match="No trial has all of these metrics"):
        satisfying(halves, parse_conditions(["a>0,b>0"], "ab"))


def test_of_failed_trials_alone_none_satisfies_and_none_is_near() -> None:
    assert satisfying([trial(0)], [Condition("accuracy", ">", 0.0)]) == []
