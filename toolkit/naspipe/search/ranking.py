"""Rank correlation: how well scores agree with the true order, and with which confidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from naspipe.records import Correlation, Direction, Gain

RESAMPLES = 5_000
"""Bootstrap resamples for an interval."""

SMALL = 20
"""With fewer pairs than this, a sample is small: of 20 unrelated pairs, one sample in twenty has a tau above 0.32 or
below -0.32. (Kendall, 1938: the standard deviation is sqrt(2 (2n + 5) / 9n(n - 1)).)"""

LEVEL = 0.95
"""Confidence level of the intervals."""

CHANCE = 0.05
"""Significance level at which trained scores count as better than untrained ones."""


def measure_agreement(
    scores: Sequence[float], score_direction: Direction, truths: Sequence[float], truth_direction: Direction
) -> tuple[Correlation, Correlation]:
    """Return Kendall's tau-b and Spearman's rho between scores and true values.

    Both sequences are turned so that larger is better, so +1 means the correct order in any direction. The intervals
    are percentile intervals of a bootstrap over pairs (Efron, 1979) with a fixed seed: equal input gives equal
    intervals. A resample in which all scores, or all true values, are equal counts as 0, as in Kendall's numerator;
    without it the interval would be too narrow.

    Args:
        scores: A score for each architecture, finite.
        score_direction: ``maximize`` or ``minimize``.
        truths: The true value of each architecture, finite.
        truth_direction: ``maximize`` or ``minimize``.

    Returns:
        Tau and rho with their intervals; all None if all scores, or all true values, are equal.
    """
    from scipy import stats  # Its import takes half a second, and only rank checks need it.

    ours, real = _higher_is_better(scores, score_direction), _higher_is_better(truths, truth_direction)
    assert ours.shape == real.shape, "every score needs its truth"
    return _correlate(ours, real, stats.kendalltau), _correlate(ours, real, stats.spearmanr)


def measure_gain(trained: Sequence[float], untrained: Sequence[float], direction: Direction) -> Gain:
    """Compare scores with those of the untrained supernet by a one-sided sign test, which assumes no distribution.

    Pairs of equal scores are left out; at least five unequal pairs are needed to reach ``CHANCE``.

    Args:
        trained: A score for each architecture.
        untrained: The scores with the untrained supernet, in the same order.
        direction: ``maximize`` or ``minimize``.
    """
    from scipy import stats

    differences = _higher_is_better(trained, direction) - _higher_is_better(untrained, direction)
    better, worse = int((differences > 0).sum()), int((differences < 0).sum())
    unequal = better + worse
    # Without an unequal pair there is no evidence for the training.
    p_value = float(stats.binomtest(better, unequal, alternative="greater").pvalue) if unequal else 1.0
    return Gain(better=better, worse=worse, p_value=p_value)


def find_doubts(count: int, kendall: Correlation, gain: Gain) -> list[str]:
    """Return reasons to doubt an agreement, as sentences.

    Args:
        count: Number of architectures.
        kendall: Their rank correlation.
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
    """Return a correlation with its interval as text."""
    if correlation.value is None:
        return "undefined"
    return f"{correlation.value:+.3f} ({correlation.low:+.3f} to {correlation.high:+.3f})"


def spread_evenly(count: int, wanted: int) -> list[int]:
    """Return indices that are spread evenly over range(count), including the first and the last.

    Args:
        count: Size of the range.
        wanted: Number of indices, from 2 to ``count``.
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
