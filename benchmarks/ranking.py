"""How well scores rank architectures: correlations, their bootstrap intervals, and what is found."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.stats import kendalltau, spearmanr

RESAMPLES = 2_000
TOP = 3


def correlations(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return Kendall's tau-b and Spearman's rho of each row of scores with the truth: (2, rows).

    Where all scores, or all truths, are the same there is no order, and both are 0.
    """
    values = np.zeros((2, len(scores)))
    for place, row in enumerate(scores):
        if np.ptp(row) > 0 and np.ptp(truth) > 0:
            values[:, place] = kendalltau(row, truth).statistic, spearmanr(row, truth).statistic
    return values


class Bootstrap:
    """Percentile intervals of means over seeds: architectures and seeds are drawn anew, for all settings alike."""

    def __init__(self, scores: Mapping[str, np.ndarray], truth: np.ndarray) -> None:
        """Correlate every resample.

        Args:
            scores: By setting: (seeds, architectures); the seeds may be fewer for some.
            truth: (architectures,).
        """
        generator = np.random.default_rng(0)
        picks = generator.integers(len(truth), size=(RESAMPLES, len(truth)))
        # (resamples, 2, seeds)
        self._values = {
            setting: np.array([correlations(rows[:, picked], truth[picked]) for picked in picks])
            for setting, rows in scores.items()
        }
        self._draws = generator.random((RESAMPLES, max(len(rows) for rows in scores.values())))

    def interval(self, setting: str, minus: str | None = None) -> np.ndarray:
        """Return the 95 % intervals of tau and rho, or of what they differ from another setting's: (2, ends)."""
        values = self._values[setting]
        if minus is not None:
            seeds = min(values.shape[2], self._values[minus].shape[2])
            values = values[:, :, :seeds] - self._values[minus][:, :, :seeds]
        seeds = values.shape[2]
        chosen = (self._draws[:, :seeds] * seeds).astype(int)
        means = np.take_along_axis(values, chosen[:, None, :], axis=2).mean(axis=2)
        return np.asarray(np.quantile(means, (0.025, 0.975), axis=0).T)


def found(scores: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the truth of what each row of scores ranks first, and the mean of its first ``TOP``."""
    order = np.argsort(-scores, axis=1, kind="stable")
    return truth[order[:, 0]], truth[order[:, :TOP]].mean(axis=1)
