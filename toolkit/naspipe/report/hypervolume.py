"""The hypervolume that a search of several objectives dominates, over its trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from naspipe.report.canvas import ACCENT, new_figure
from naspipe.search.objective import Objective
from naspipe.search.trial import Trial, complete_trials

MARGIN = 0.1
"""Distance of the reference point from the worst values, as a fraction of each objective's range."""


@dataclass(frozen=True)
class HypervolumeHistory:
    """The hypervolume that the trials dominate, after each trial.

    Attributes:
        trials: Indices of the complete trials.
        shares: After each of them, the dominated share of the box between the reference point and the best values.
        reference: The reference point, a value for each objective.
    """

    trials: list[int]
    shares: list[float]
    reference: tuple[float, ...]


def hypervolume_history(trials: Sequence[Trial], objectives: Sequence[Objective]) -> HypervolumeHistory:
    """Return how the dominated hypervolume grows, as Optuna computes it.

    The reference point is the worst value of each objective among all complete trials, moved a tenth of the
    objective's range further off, so that the ends of the front count as well.

    Args:
        trials: In order, at least one of them complete.
        objectives: Two at least.
    """
    # A search of one objective does not need it.
    import optuna

    from naspipe.search.study import quiet_optuna

    complete = complete_trials(trials)
    best, reference = [], []
    for objective in objectives:
        values = sorted((trial.metrics[objective.name] for trial in complete), key=objective.cost)
        best.append(values[0])
        # An objective with equal values gets a range, because a box without width has no volume.
        reference.append(values[-1] + MARGIN * ((values[-1] - values[0]) or objective.cost(1.0)))
    with quiet_optuna():
        study = optuna.create_study(directions=[objective.direction for objective in objectives])
        study.add_trials(optuna.trial.create_trial(values=trial.values(objectives)) for trial in complete)
        drawn = optuna.visualization.plot_hypervolume_history(study, reference).data[0]
    box = math.prod(abs(worst - good) for worst, good in zip(reference, best, strict=True))
    return HypervolumeHistory(
        [complete[number].index for number in drawn.x], [value / box for value in drawn.y], tuple(reference)
    )


def hypervolume_figure(history: HypervolumeHistory) -> Any:
    """Return the dominated share over the trials."""
    figure = new_figure(280, "trial", "dominated hypervolume (share)")
    figure.add_scatter(
        x=history.trials, y=history.shares, mode="lines", line={"color": ACCENT, "width": 2.5, "shape": "hv"},
        hovertemplate="trial %{x}: %{y:.4f}<extra></extra>",
    )  # fmt: skip
    figure.update_layout(margin={"t": 30})
    figure.update_yaxes(range=[0, 1.03])
    return figure
