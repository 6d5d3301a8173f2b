"""The drawing of an architecture, as a plotly figure."""

from __future__ import annotations

import html
from typing import Any

from naspipe.report.canvas import ACCENT, COLORS, INK, SOFT, new_figure
from naspipe.space import ArchitectureGraph

SHORT = 4
"""Characters of a label that still fit into a node."""


def architecture_figure(graph: ArchitectureGraph) -> Any:
    """Return an architecture as a drawing: nodes, arrows, and the operations on them."""
    columns = [x for _, _, x, _ in graph.nodes]
    rows = [y for _, _, _, y in graph.nodes]
    inside = all(len(label) <= SHORT for _, label, _, _ in graph.nodes)
    column = not inside and max(columns) == min(columns)
    spread = max(rows) - min(rows)
    # Pixels per row: a line of text in a column, else room for labels on slanted edges.
    figure = new_figure(int(spread * (34 if column else 90)) + 100, "", "")
    # A single column lies at the left, and its labels take the rest of the width.
    right = 8.0 if column else 0.3
    figure.update_xaxes(visible=False, fixedrange=True, range=[min(columns) - 0.3, max(columns) + right])
    margin = 0.7 if column else 0.35
    figure.update_yaxes(visible=False, fixedrange=True, range=[min(rows) - margin, max(rows) + margin])
    figure.update_layout(margin={"l": 0, "r": 0, "t": 30, "b": 0})
    _add_edges(figure, graph, radius=17 if inside else 8)
    used = {name for source, target, _ in graph.edges for name in (source, target)}
    figure.add_scatter(
        x=columns,
        y=rows,
        mode="markers+text",
        text=[html.escape(label) for _, label, _, _ in graph.nodes],
        textposition="middle center" if inside else "middle right" if column else "top center",
        marker={
            "size": 34 if inside else 16,
            "color": ["#ccfbf1" if name in used else "#f1f5f9" for name, _, _, _ in graph.nodes],
            "line": {
                "color": [ACCENT if name in used else SOFT for name, _, _, _ in graph.nodes],
                "width": 2,
            },
        },
        cliponaxis=False,
        hoverinfo="skip",
        showlegend=False,
    )
    for title, x, y in graph.titles:
        figure.add_annotation(
            x=x, y=y, text=f"<b>{html.escape(title)}</b>", xanchor="left", showarrow=False,
            font={"color": INK},
        )  # fmt: skip
    return figure


def _add_edges(figure: Any, graph: ArchitectureGraph, radius: int) -> None:
    """Draw the arrows, then the labels, so that no arrow crosses a label."""
    places = {name: (x, y) for name, _, x, y in graph.nodes}
    labels = sorted({label for _, _, label in graph.edges if label})
    colors = {label: COLORS[index % len(COLORS)] for index, label in enumerate(labels)}
    for source, target, label in graph.edges:
        (x0, y0), (x1, y1) = places[source], places[target]
        figure.add_annotation(
            x=x1, y=y1, ax=x0, ay=y0, xref="x", yref="y", axref="x", ayref="y", text="",
            showarrow=True, arrowhead=2, arrowsize=1.2, arrowwidth=2, arrowcolor=colors.get(label, SOFT),
            standoff=radius + 2, startstandoff=radius,
        )  # fmt: skip
    for source, target, label in graph.edges:
        if label:
            (x0, y0), (x1, y1) = places[source], places[target]
            figure.add_annotation(
                x=(x0 + x1) / 2, y=(y0 + y1) / 2, text=html.escape(label), showarrow=False,
                font={"size": 12, "color": colors[label]}, bgcolor="white", borderpad=1,
            )  # fmt: skip
