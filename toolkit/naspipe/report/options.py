"""Heatmaps of the options of every decision: how often each was trained, and how well each survives a search."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from naspipe.report.canvas import ACCENT, MARK, new_figure
from naspipe.space import SearchSpace

WRITTEN_OPTIONS, WRITTEN_DECISIONS, WRITTEN_COUNT = 8, 40, 10_000
"""Limits up to which numbers are written into the cells; more of them do not fit on a telephone."""


def option_counts(space: SearchSpace, architectures: Sequence[Mapping[str, Any]]) -> Any:
    """Return how often each option of each decision was trained."""
    counts = _count(space, architectures)
    hover = [
        [
            f"{decision.name} = {option}: {n:,}"
            for option, n in zip(decision.options, counts[decision.name], strict=True)
        ]
        for decision in space.decisions
    ]
    rows = list(counts.values())
    most = max(max(row) for row in rows)
    return _heatmap(
        space, rows, hover, texts="%{z}" if most < WRITTEN_COUNT else None,
        colorscale="Teal", zmin=0, zmax=most, colorbar={"title": "subnets", "thickness": 12},
    )  # fmt: skip


def option_survival(
    space: SearchSpace, evaluated: Sequence[Mapping[str, Any]], survivors: Sequence[Mapping[str, Any]]
) -> Any:
    """Return by how many percentage points the share of each option differs among the survivors of a search.

    A share is that of the architectures in which the decision exists.

    Args:
        space: The space that was searched.
        evaluated: Architectures, at least one.
        survivors: The kept ones among them.
    """
    before, after = _shares(space, evaluated), _shares(space, survivors)
    rows: list[list[float | None]] = []
    hover: list[list[str]] = []
    for decision in space.decisions:
        pairs = list(zip(before[decision.name], after[decision.name], strict=True))
        rows.append([None if a is None or b is None else round(100 * (b - a)) for a, b in pairs])
        hover.append(
            [
                f"{decision.name} = {option}<br>{_percent(a)} of the evaluated, {_percent(b)} of the best"
                for option, (a, b) in zip(decision.options, pairs, strict=True)
            ]
        )
    bound = max((abs(value) for row in rows for value in row if value is not None), default=0.0) or 1.0
    return _heatmap(
        space, rows, hover, texts="%{z:+d}",
        colorscale=[[0, MARK], [0.5, "#ffffff"], [1, ACCENT]], zmin=-bound, zmax=bound,
        colorbar={"title": "points", "thickness": 12},
    )  # fmt: skip


def _count(space: SearchSpace, architectures: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    counts = {decision.name: Counter[int]() for decision in space.decisions}
    for architecture in architectures:
        for name, option in architecture.items():
            counts[name][space.decision(name).index(option)] += 1
    return {
        decision.name: [counts[decision.name][index] for index in range(len(decision.options))]
        for decision in space.decisions
    }


def _shares(space: SearchSpace, architectures: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """Return the share of each option where its decision exists; None if it exists nowhere."""
    return {
        name: [count / total if (total := sum(row)) else None for count in row]
        for name, row in _count(space, architectures).items()
    }


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.0f} %"


def _heatmap(
    space: SearchSpace,
    rows: Sequence[Sequence[float | None]],
    hover: Sequence[Sequence[str]],
    texts: str | None,
    **colors: Any,
) -> Any:
    """Return a row for each decision and a cell for each of its options; ``texts`` is plotly's template of a cell."""
    width = max(len(decision.options) for decision in space.decisions)
    shared = len({decision.options for decision in space.decisions}) == 1
    columns = [str(option) for option in space.decisions[0].options] if shared else [str(n) for n in range(width)]
    written = texts is not None and width <= WRITTEN_OPTIONS and len(rows) <= WRITTEN_DECISIONS
    figure = new_figure(
        max(220, min(1200, 110 + 26 * len(rows))), "option" if shared else "index of the option", "decision"
    )
    figure.add_heatmap(
        z=[[*row, *[None] * (width - len(row))] for row in rows],
        x=columns,
        y=[decision.name for decision in space.decisions],
        text=[[*map(_escape, row), *[""] * (width - len(row))] for row in hover],
        hovertemplate="%{text}<extra></extra>",
        hoverongaps=False,
        texttemplate=texts if written else None,
        textfont={"size": 11},
        xgap=1,
        ygap=1,
        showscale=not written,
        **colors,
    )
    figure.update_layout(margin={"t": 30})
    figure.update_xaxes(type="category", showgrid=False, tickfont={"size": 12})
    figure.update_yaxes(type="category", showgrid=False, tickfont={"size": 12}, autorange="reversed")
    return figure


def _escape(text: str) -> str:
    return "<br>".join(map(html.escape, text.split("<br>")))
