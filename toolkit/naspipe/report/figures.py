"""The curves of training and search in a report, as plotly figures."""

from __future__ import annotations

import html
import itertools
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from naspipe.report.canvas import ACCENT, MARK, SOFT, new_figure
from naspipe.search.objective import Objective
from naspipe.search.selection import rank_by_knee
from naspipe.search.trial import Trial, pareto_front

MAX_POINTS = 1_000
"""Points of a curve before neighbours are averaged."""

STAR = {"size": 15, "color": MARK, "symbol": "star"}
RING = {"size": 17, "color": MARK, "symbol": "circle-open", "line": {"width": 2}}


def training_curve(losses: Sequence[float]) -> Any:
    """Return the loss of each subnet, and its running mean."""
    width = -(-len(losses) // MAX_POINTS)
    means = [
        sum(losses[start : start + width]) / len(losses[start : start + width])
        for start in range(0, len(losses), width)
    ]
    places = list(range(0, len(losses), width))
    figure = new_figure(330, "subnet, in the order of training", "training loss")
    name = "loss of a subnet" if width == 1 else f"mean of {width} subnets"
    figure.add_scatter(x=places, y=means, mode="markers", name=name, marker={"size": 4, "color": SOFT})
    span = max(1, len(means) // 30)
    totals = [0.0, *itertools.accumulate(means)]
    smooth = [
        (totals[end] - totals[max(0, end - span)]) / (end - max(0, end - span)) for end in range(1, len(means) + 1)
    ]
    if span > 1:
        figure.add_scatter(
            x=places, y=smooth, mode="lines", name=f"mean of the last {span * width}",
            line={"color": ACCENT, "width": 2.5},
        )  # fmt: skip
    return figure


def search_history(trials: Sequence[Trial], objective: Objective, texts: Mapping[int, str], best: int | None) -> Any:
    """Return an objective over the trials, with the best so far."""
    complete = [trial for trial in trials if trial.reason is None]
    values = [trial.metrics[objective.name] for trial in complete]
    figure = new_figure(330, "trial", axis_title(objective))
    _add_trials(figure, complete, texts, "evaluated", {"size": 7, "color": SOFT}, "trial", objective.name)
    better = max if objective.direction == "maximize" else min
    figure.add_scatter(
        x=[trial.index for trial in complete], y=list(itertools.accumulate(values, better)),
        mode="lines", name="best so far", line={"color": ACCENT, "width": 2.5, "shape": "hv"},
        hoverinfo="skip",
    )  # fmt: skip
    chosen = [trial for trial in complete if trial.index == best]
    _add_trials(figure, chosen, texts, "chosen", STAR, "trial", objective.name)
    return figure


def pareto_figure(
    trials: Sequence[Trial],
    objectives: Sequence[Objective],
    other: Objective,
    texts: Mapping[int, str],
    best: int | None,
) -> Any:
    """Return the first objective against another, with the Pareto front and its knee."""
    first = objectives[0]
    complete = [trial for trial in trials if trial.reason is None]
    front = pareto_front(complete, objectives)
    figure = new_figure(400, axis_title(other), axis_title(first))
    _add_trials(figure, complete, texts, "evaluated", {"size": 7, "color": SOFT}, other.name, first.name)
    _add_trials(figure, front, texts, "Pareto front", {"size": 9, "color": ACCENT}, other.name, first.name)
    if len(objectives) == 2:
        # Steps along the front bound the area that the trials dominate.
        steps = {
            "x": [trial.metrics[other.name] for trial in reversed(front)],
            "y": [trial.metrics[first.name] for trial in reversed(front)],
        }
        figure.add_scatter(
            **steps, mode="lines", line={"color": ACCENT, "width": 1.5, "shape": "hv"},
            hoverinfo="skip", showlegend=False,
        )  # fmt: skip
    knee = rank_by_knee(front, objectives)[:1]
    _add_trials(figure, knee, texts, "knee", RING, other.name, first.name)
    chosen = [trial for trial in complete if trial.index == best]
    _add_trials(figure, chosen, texts, "chosen", STAR, other.name, first.name)
    return figure


def axis_title(objective: Objective) -> str:
    """Return the title of an axis, with the better direction."""
    better = "higher" if objective.direction == "maximize" else "lower"
    return f"{html.escape(objective.name)} ({better} is better)"


def _add_trials(
    figure: Any,
    trials: Sequence[Trial],
    texts: Mapping[int, str],
    name: str,
    marker: dict[str, Any],
    x: str,
    y: str,
) -> None:
    """Add trials as points; ``x`` and ``y`` name a metric, or ``x`` is "trial"."""
    if not trials:
        return
    places = [trial.index if x == "trial" else trial.metrics[x] for trial in trials]
    figure.add_scatter(
        x=places, y=[trial.metrics[y] for trial in trials], mode="markers", name=name, marker=marker,
        text=[f"trial {trial.index}<br>{wrap_text(texts[trial.index])}" for trial in trials],
        hovertemplate=f"{html.escape(y)} %{{y:.6g}}, {html.escape(x)} %{{x:.6g}}<br>%{{text}}<extra></extra>",
    )  # fmt: skip


def wrap_text(text: str) -> str:
    """Return a text in lines short enough for a telephone."""
    return "<br>".join(html.escape(line) for line in textwrap.wrap(text, 44))
