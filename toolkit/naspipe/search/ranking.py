"""Rank correlation: whether scores put things into the order of the truth, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from naspipe.records import Correlation, Direction, Gain

RESAMPLES = 5_000
"""Bootstrap resamples of an interval."""

SMALL = 20
"""Fewer pairs than these are a small sample: of 20 pairs without any relation, one sample in twenty still has a tau
beyond 0.32 either way, of fewer even more. (Kendall, 1938: the standard deviation is sqrt(2 (2n + 5) / 9n(n - 1)).)"""

LEVEL = 0.95
"""Confidence level of the intervals."""

CHANCE = 0.05
"""Significance at which trained scores count as better than untrained ones."""


def measure_agreement(
    scores: Sequence[float], score_direction: Direction, truths: Sequence[float], truth_direction: Direction
) -> tuple[Correlation, Correlation]:
    """Return Kendall's tau-b and Spearman's rho between scores and truth.

    Both are turned so that higher is better: +1 always means that the scores rank rightly, whatever is minimised.
    Intervals are percentile intervals of a bootstrap that draws pairs (Efron, 1979), with a generator of a fixed seed:
    the same numbers give the same interval. A resample in which all scores, or all truths, are equal ranks nothing and
    counts as 0, as Kendall's numerator does; leaving it out would narrow the interval.

    Args:
        scores: One for each thing that is ranked, finite.
        score_direction: Which way scores are better.
        truths: One for each, finite.
        truth_direction: Which way truths are better.

    Returns:
        Both with their intervals; without any value if all scores, or all truths, are equal.
    """
    from scipy import stats  # half a second, which reports of other runs need not wait for

    ours, real = _higher_is_better(scores, score_direction), _higher_is_better(truths, truth_direction)
    assert ours.shape == real.shape, "every score needs its truth"
    return _correlate(ours, real, stats.kendalltau), _correlate(ours, real, stats.spearmanr)


def measure_gain(trained: Sequence[float], untrained: Sequence[float], direction: Direction) -> Gain:
    """Compare scores with those of the untrained supernet by a sign test; it asks nothing of their distribution.

    Pairs of equal scores say nothing and are left out, so fewer than five unequal ones cannot reach ``CHANCE``.

    Args:
        trained: One for each architecture.
        untrained: One for each, in the same order.
        direction: Which way scores are better.
    """
    from scipy import stats

    differences = _higher_is_better(trained, direction) - _higher_is_better(untrained, direction)
    better, worse = int((differences > 0).sum()), int((differences < 0).sum())
    unequal = better + worse
    # Without any pair that differs nothing speaks for the training.
    p_value = float(stats.binomtest(better, unequal, alternative="greater").pvalue) if unequal else 1.0
    return Gain(better=better, worse=worse, p_value=p_value)


def find_doubts(count: int, kendall: Correlation, gain: Gain) -> list[str]:
    """Return why an agreement may say little, as sentences for people.

    Args:
        count: Pairs that were correlated.
        kendall: What came of it.
        gain: The comparison with the untrained supernet.
    """
    doubts = []
    if kendall.value is None:
        doubts.append("All scores are equal, or all truths are: there is no order to agree with.")
    if count < SMALL:
        doubts.append(
            f"The sample is small: {count} architectures. With fewer than {SMALL}, a tau of a third either way is "
            "nothing unusual where there is no relation at all. Check more architectures."
        )
    if gain.p_value >= CHANCE:
        doubts.append(
            f"The supernet may be near chance: of {gain.better + gain.worse} architectures whose scores differ, "
            f"{gain.better} score better with its weights than with those from before its training, which a one-sided "
            f"sign test does not find clear (p = {gain.p_value:.2g}; below {CHANCE} it would be). Its order may be "
            "noise. Train it longer, or check more architectures."
        )
    return doubts


def describe_correlation(correlation: Correlation) -> str:
    """Return a correlation with its interval, as people write it."""
    if correlation.value is None:
        return "undefined"
    return f"{correlation.value:+.3f} ({correlation.low:+.3f} to {correlation.high:+.3f})"


def spread_evenly(count: int, wanted: int) -> list[int]:
    """Return places spread evenly over range(count), the first and the last among them.

    Args:
        count: Number of places.
        wanted: How many of them, from 2 to ``count``.
    """
    assert 2 <= wanted <= count
    return [(2 * index * (count - 1) + wanted - 1) // (2 * (wanted - 1)) for index in range(wanted)]


def _higher_is_better(values: Sequence[float], direction: Direction) -> Any:
    array = np.array(values, dtype=float)
    return array if direction == "maximize" else -array


def _correlate(scores: Any, truths: Any, statistic: Callable[[Any, Any], Any]) -> Correlation:
    from scipy import stats

    def correlate(a: Any, b: Any) -> float:
        return 0.0 if _is_constant(a) or _is_constant(b) else float(statistic(a, b).statistic)

    if _is_constant(scores) or _is_constant(truths):
        return Correlation(value=None, low=None, high=None)
    drawn = stats.bootstrap(
        (scores, truths), correlate, paired=True, vectorized=False, n_resamples=RESAMPLES, method="percentile",
        confidence_level=LEVEL, rng=np.random.default_rng(0),
    )  # fmt: skip
    interval = drawn.confidence_interval
    return Correlation(value=correlate(scores, truths), low=float(interval.low), high=float(interval.high))


def _is_constant(values: Any) -> bool:
    return bool((values == values[0]).all())
