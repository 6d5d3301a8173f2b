"""Rank correlations: one sign convention, honest intervals, and what makes them doubtful."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.records import Correlation, Direction, Gain
from naspipe.search import ranking
from naspipe.search.ranking import describe_correlation, find_doubts, measure_agreement, measure_gain, spread_evenly

DIRECTIONS: tuple[Direction, ...] = ("maximize", "minimize")
PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=12)
CLEAR = Gain(better=10, worse=0, p_value=0.001)
SURE = Correlation(value=0.5, low=0.3, high=0.7)


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "RESAMPLES", 40)


@pytest.mark.parametrize(("ours", "real"), list(itertools.product(DIRECTIONS, repeat=2)))
def test_one_means_the_true_order_and_minus_one_its_reverse_whatever_is_minimised(
    ours: Direction, real: Direction
) -> None:
    quality = [3.0, 1.0, 2.0, 5.0, 4.0]
    scores = [value if ours == "maximize" else -value for value in quality]
    truths = [value**3 if real == "maximize" else -(value**3) for value in quality]
    for correlation in measure_agreement(scores, ours, truths, real):
        # Spearman's coefficient is a quotient of sums of squares: the last digit is rounded.
        assert correlation.value == pytest.approx(1, abs=1e-12)
    for correlation in measure_agreement(scores, ours, [-value for value in truths], real):
        assert correlation.value == pytest.approx(-1, abs=1e-12)


@settings(max_examples=20, deadline=None)
@given(PAIRS)
def test_turning_scores_and_direction_together_changes_no_bit(pairs: list[tuple[int, int]]) -> None:
    scores, truths = [float(a) for a, _ in pairs], [float(b) for _, b in pairs]
    straight = measure_agreement(scores, "maximize", truths, "maximize")
    assert measure_agreement([-a for a in scores], "minimize", truths, "maximize") == straight
    assert measure_agreement(scores, "maximize", [-b for b in truths], "minimize") == straight


@settings(max_examples=20, deadline=None)
@given(PAIRS)
def test_kendall_is_tau_b_by_its_definition_and_only_ranks_count(pairs: list[tuple[int, int]]) -> None:
    def sign(a: int, b: int) -> int:
        return (a > b) - (a < b)

    couples = list(itertools.combinations(pairs, 2))
    agree = sum(sign(a, c) * sign(b, d) for (a, b), (c, d) in couples)
    ours = sum(a != c for (a, _), (c, _) in couples)
    real = sum(b != d for (_, b), (_, d) in couples)
    kendall, spearman = measure_agreement([a for a, _ in pairs], "maximize", [b for _, b in pairs], "maximize")
    if ours and real:
        # The root is taken in another order.
        assert kendall.value == pytest.approx(agree / math.sqrt(ours * real), abs=1e-12)
    else:
        assert kendall.value is None
    stretched = measure_agreement([10.0**a for a, _ in pairs], "maximize", [b for _, b in pairs], "maximize")
    assert stretched == (kendall, spearman)


@settings(max_examples=20, deadline=None)
@given(PAIRS)
def test_intervals_are_ordered_within_bounds_and_the_same_again(pairs: list[tuple[int, int]]) -> None:
    arguments = ([float(a) for a, _ in pairs], "maximize", [float(b) for _, b in pairs], "minimize")
    both = measure_agreement(*arguments)  # type: ignore[arg-type]  # a tuple of what it takes
    assert measure_agreement(*arguments) == both  # type: ignore[arg-type]  # a tuple of what it takes
    for found in both:
        if found.value is None:
            assert (found.low, found.high) == (None, None)
        else:
            assert found.low is not None
            assert found.high is not None
            assert -1 - 1e-12 <= found.low <= found.high <= 1 + 1e-12


def test_equal_scores_or_truths_rank_nothing() -> None:
    for scores, truths in (([1.0] * 5, [1.0, 2.0, 3.0, 4.0, 5.0]), ([1.0, 2.0, 3.0, 4.0, 5.0], [0.1] * 5)):
        kendall, spearman = measure_agreement(scores, "maximize", truths, "maximize")
        assert kendall == spearman == Correlation(value=None, low=None, high=None)
        assert describe_correlation(kendall) == "undefined"
        assert "All scores are equal, or all truths are" in find_doubts(20, kendall, CLEAR)[0]


def test_a_resample_that_ranks_nothing_counts_as_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "RESAMPLES", 200)
    # Of three pairs one resample in nine is three times the same; all others are in perfect order.
    for correlation in measure_agreement([1.0, 2.0, 3.0], "maximize", [4.0, 5.0, 6.0], "maximize"):
        assert correlation.low == 0
        assert correlation.high == pytest.approx(1, abs=1e-12)


def test_an_interval_narrows_with_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "RESAMPLES", 200)
    widths = []
    for count in (10, 40, 160):
        scores = [float(index * 37 % 101) for index in range(count)]
        truths = [score + 60 * math.sin(index) for index, score in enumerate(scores)]
        kendall, _ = measure_agreement(scores, "maximize", truths, "maximize")
        assert kendall.low is not None
        assert kendall.high is not None
        widths.append(kendall.high - kendall.low)
    assert widths == sorted(widths, reverse=True)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_gain_is_a_one_sided_sign_test_of_the_unequal_pairs(direction: Direction) -> None:
    sign = 1 if direction == "maximize" else -1

    def gain(*differences: int) -> Gain:
        return measure_gain([sign * value for value in differences], [0.0] * len(differences), direction)

    assert gain(1, 2, 3, 4, 5) == Gain(better=5, worse=0, p_value=1 / 32)
    assert gain(1, 2, 3, 4, 0, 0) == Gain(better=4, worse=0, p_value=1 / 16)
    assert gain(1, -2, 3, -4) == Gain(better=2, worse=2, p_value=11 / 16)
    assert gain(0, 0, 0) == Gain(better=0, worse=0, p_value=1.0)
    assert gain(-1, -2, -3, -4, -5).p_value == 1


def test_a_small_sample_and_a_supernet_near_chance_are_doubtful_and_others_are_not() -> None:
    assert find_doubts(20, SURE, CLEAR) == []
    (small,) = find_doubts(19, SURE, CLEAR)
    assert "The sample is small: 19 architectures. With fewer than 20" in small
    (chance,) = find_doubts(20, SURE, Gain(better=6, worse=4, p_value=0.377))
    assert "may be near chance: of 10 architectures whose scores differ, 6 score better" in chance
    assert "p = 0.38; below 0.05" in chance
    assert len(find_doubts(4, SURE, Gain(better=4, worse=0, p_value=1 / 16))) == 2


def test_small_is_where_unrelated_scores_pass_a_third_once_in_twenty() -> None:
    def twice_the_deviation(count: int) -> float:
        return 1.96 * math.sqrt(2 * (2 * count + 5) / (9 * count * (count - 1)))

    assert twice_the_deviation(ranking.SMALL) == pytest.approx(0.318, abs=0.001)
    assert twice_the_deviation(ranking.SMALL) < 1 / 3


@given(st.integers(2, 200), st.data())
def test_places_spread_evenly_from_the_first_to_the_last(count: int, data: st.DataObject) -> None:
    wanted = data.draw(st.integers(2, count))
    places = spread_evenly(count, wanted)
    assert (places[0], places[-1], len(places)) == (0, count - 1, wanted)
    gaps = {after - before for before, after in itertools.pairwise(places)}
    assert min(gaps) >= 1
    assert max(gaps) - min(gaps) <= 1


def test_it_needs_no_torch() -> None:
    code = (
        "import sys\nfrom naspipe.search.ranking import measure_agreement\n"
        "measure_agreement([1, 2, 3], 'maximize', [1, 3, 2], 'maximize')\nsys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
