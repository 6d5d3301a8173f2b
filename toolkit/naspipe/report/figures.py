"""The figures of a report, as plotly figures."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from naspipe.search.objective import Objective
from naspipe.search.trial import Trial, pareto_front
from naspipe.space import ArchitectureGraph, SearchSpace

MAX_POINTS = 1_000
"""Points of a curve before neighbours are averaged."""

INK, ACCENT, SOFT = "#1f2937", "#0f766e", "#94a3b8"
OPTION_COLORS = ("#0f766e", "#b45309", "#4338ca", "#be123c", "#15803d", "#7e22ce", "#0369a1")


def _figure(height: int, x_title: str, y_title: str) -> Any:
    figure = go.Figure()
    figure.update_layout(
        template="plotly_white",
        height=height,
        margin={"l": 60, "r": 20, "t": 10, "b": 50},
        font={"family": "system-ui, sans-serif", "color": INK, "size": 13},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        xaxis={"title": x_title, "automargin": True},
        yaxis={"title": y_title, "automargin": True},
    )
    return figure


def training_curve(losses: Sequence[float]) -> Any:
    """Return the loss of each subnet, and its running mean."""
    width = -(-len(losses) // MAX_POINTS)
    means = [
        sum(losses[start : start + width]) / len(losses[start : start + width])
        for start in range(0, len(losses), width)
    ]
    places = list(range(0, len(losses), width))
    figure = _figure(320, "subnet", "training loss")
    name = "loss of a subnet" if width == 1 else f"mean of {width} subnets"
    figure.add_scatter(
        x=places, y=means, mode="markers", name=name, marker={"size": 4, "color": SOFT}
    )
    span = max(1, len(means) // 30)
    totals = [0.0, *itertools.accumulate(means)]
    smooth = [
        (totals[end] - totals[max(0, end - span)]) / (end - max(0, end - span))
        for end in range(1, len(means) + 1)
    ]
    figure.add_scatter(
        x=places, y=smooth, mode="lines", name=f"mean of the last {span * width}",
        line={"color": ACCENT, "width": 2.5},
    )  # fmt: skip
    return figure


def option_counts(space: SearchSpace, architectures: Sequence[dict[str, Any]]) -> Any:
    """Return how often each option of each decision was trained."""
    counts = {decision.name: Counter[int]() for decision in space.decisions}
    for architecture in architectures:
        for name, option in architecture.items():
            counts[name][space.decision(name).index(option)] += 1
    width = max(len(decision.options) for decision in space.decisions)
    shared = len({decision.options for decision in space.decisions}) == 1
    columns = (
        [str(option) for option in space.decisions[0].options] if shared else list(range(width))
    )
    rows, hover = [], []
    for decision in space.decisions:
        blank: list[Any] = [None] * (width - len(decision.options))
        row = [counts[decision.name][index] for index in range(len(decision.options))]
        rows.append([*row, *blank])
        hover.append(
            [
                f"{decision.name} = {option}: {count}"
                for option, count in zip(decision.options, row, strict=True)
            ]
            + [""] * len(blank)
        )
    height = max(220, min(900, 90 + 30 * len(rows)))
    figure = _figure(height, "option", "decision")
    figure.add_heatmap(
        z=rows,
        x=columns,
        y=[decision.name for decision in space.decisions],
        text=hover,
        hoverinfo="text",
        texttemplate="%{z}" if width <= 12 and len(rows) <= 30 else None,
        colorscale="Teal",
        zmin=0,
        colorbar={"title": "subnets"},
    )
    figure.update_yaxes(autorange="reversed")
    return figure


def search_history(
    trials: Sequence[Trial], objective: Objective, texts: Sequence[str], best: int | None
) -> Any:
    """Return an objective over the trials, with the best so far."""
    complete = [trial for trial in trials if trial.reason is None]
    places = [trial.index for trial in complete]
    values = [trial.metrics[objective.name] for trial in complete]
    figure = _figure(320, "trial", objective.name)
    figure.add_scatter(
        x=places, y=values, mode="markers", name="evaluated", marker={"size": 7, "color": SOFT},
        text=[texts[trial.index] for trial in complete],
        hovertemplate="trial %{x}: %{y:.6g}<br>%{text}<extra></extra>",
    )  # fmt: skip
    better = max if objective.direction == "maximize" else min
    figure.add_scatter(
        x=places, y=list(itertools.accumulate(values, better)), mode="lines", name="best so far",
        line={"color": ACCENT, "width": 2.5, "shape": "hv"},
    )  # fmt: skip
    chosen = [trial for trial in complete if trial.index == best]
    if chosen:
        figure.add_scatter(
            x=[chosen[0].index], y=[chosen[0].metrics[objective.name]], mode="markers",
            name="chosen", marker={"size": 14, "color": "#b45309", "symbol": "star"},
        )  # fmt: skip
    return figure


def pareto_figure(
    trials: Sequence[Trial], objectives: Sequence[Objective], texts: Sequence[str], best: int | None
) -> Any:
    """Return the first two objectives against each other, with the trials no other is better than."""
    first, second = objectives[:2]
    complete = [trial for trial in trials if trial.reason is None]
    front = pareto_front(complete, (first, second))
    figure = _figure(380, second.name, first.name)
    for name, shown, color, size in (
        ("evaluated", complete, SOFT, 7),
        ("Pareto front", front, ACCENT, 9),
        ("chosen", [trial for trial in complete if trial.index == best], "#b45309", 14),
    ):
        figure.add_scatter(
            x=[trial.metrics[second.name] for trial in shown],
            y=[trial.metrics[first.name] for trial in shown],
            mode="markers", name=name, marker={"size": size, "color": color},
            text=[texts[trial.index] for trial in shown],
            hovertemplate="%{y:.6g} at %{x:.6g}<br>%{text}<extra></extra>",
        )  # fmt: skip
    return figure


def architecture_figure(graph: ArchitectureGraph) -> Any:
    """Return an architecture as a drawing: nodes, arrows, and the operations on them."""
    places = {name: (x, y) for name, _, x, y in graph.nodes}
    rows = [y for _, _, _, y in graph.nodes]
    chain = max(rows) == min(rows)
    figure = _figure(max(260, int(110 * (max(rows) - min(rows)) + 130)), "", "")
    labels = list(dict.fromkeys(label for _, _, label in graph.edges if label))
    for source, target, label in graph.edges:
        (x0, y0), (x1, y1) = places[source], places[target]
        color = OPTION_COLORS[labels.index(label) % len(OPTION_COLORS)] if label else SOFT
        figure.add_annotation(
            x=x1, y=y1, ax=x0, ay=y0, xref="x", yref="y", axref="x", ayref="y", text="",
            showarrow=True, arrowhead=2, arrowsize=1.2, arrowwidth=2, arrowcolor=color,
            standoff=18, startstandoff=16,
        )  # fmt: skip
        if label:
            figure.add_annotation(
                x=x0 + 0.5 * (x1 - x0), y=y0 + 0.5 * (y1 - y0), text=label, showarrow=False,
                font={"size": 11, "color": color}, bgcolor="white",
            )  # fmt: skip
    figure.add_scatter(
        x=[x for _, _, x, _ in graph.nodes],
        y=rows,
        mode="markers+text",
        text=[label for _, label, _, _ in graph.nodes],
        textposition="top center" if chain else "middle center",
        marker={
            "size": 16 if chain else 34,
            "color": "#ccfbf1",
            "line": {"color": ACCENT, "width": 2},
        },
        hoverinfo="text",
        showlegend=False,
    )
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    return figure
