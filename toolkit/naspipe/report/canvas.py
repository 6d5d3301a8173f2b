"""The style of all figures, and an empty figure in it."""

from __future__ import annotations

from typing import Any

INK, ACCENT, SOFT, MARK = "#1f2937", "#0f766e", "#94a3b8", "#b45309"

COLORS = ("#0f766e", "#b45309", "#4338ca", "#be123c", "#15803d", "#7e22ce", "#0369a1")
"""Colours of things that a figure tells apart; they start again if there are more things."""


def new_figure(height: int, x_title: str, y_title: str) -> Any:
    """Return an empty figure in the report's style; its width is that of the page."""
    # Importing plotly takes a second, which terminal tables need not wait for.
    from plotly.graph_objects import Figure

    figure = Figure()
    figure.update_layout(
        template="plotly_white",
        height=height,
        # The top holds the mode bar and two rows of legend, as many as a telephone needs.
        margin={"l": 50, "r": 10, "t": 54, "b": 45},
        font={"family": "system-ui, sans-serif", "color": INK, "size": 13},
        legend={
            "orientation": "h", "yref": "container", "y": 1, "yanchor": "top", "xref": "container",
            "x": 0, "font": {"size": 12},
        },
        xaxis={"title": {"text": x_title, "standoff": 10, "font": {"size": 13}}, "automargin": True},
        yaxis={"title": {"text": y_title, "standoff": 10, "font": {"size": 13}}, "automargin": True},
        # Dragging would keep a telephone from scrolling.
        dragmode=False,
        hoverlabel={"align": "left", "font": {"size": 12}},
    )  # fmt: skip
    figure.update_xaxes(zeroline=False)
    figure.update_yaxes(zeroline=False)
    return figure
