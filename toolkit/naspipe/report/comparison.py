"""The page of ``naspipe compare``: throughput and bubble of each training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from naspipe.files import write_text
from naspipe.report.drawing import COLORS
from naspipe.report.figures import new_figure
from naspipe.report.markup import plot, section, standalone_page, table

Row = Mapping[str, Any]


def comparison_figure(rows: Sequence[Row], key: str, title: str) -> Any:
    """Return a figure with one bar for each training, grouped by stages.

    Args:
        rows: With the keys of ``naspipe.verification.comparison.COLUMNS``.
        key: The column that is drawn.
        title: Title of its axis.
    """
    figure = new_figure(360, "stages", title)
    series: dict[str, list[Row]] = {}
    for row in rows:
        series.setdefault(f"{row['executor']}, {row['sampler']}", []).append(row)
    for index, (name, members) in enumerate(series.items()):
        figure.add_bar(
            x=[str(row["stages"]) for row in members],
            y=[row[key] for row in members],
            name=name,
            marker={"color": COLORS[index % len(COLORS)]},
        )
    figure.update_layout(barmode="group", showlegend=len(series) > 1)
    figure.update_xaxes(type="category")
    return figure


def write_comparison(rows: Sequence[Row], path: Path, caption: str) -> None:
    """Write a self-contained page.

    Args:
        rows: With the keys of ``naspipe.verification.comparison.COLUMNS``.
        path: File to write.
        caption: The command that measured them.
    """
    head = [key.replace("_", " ") for key in rows[0]]
    cells = [[f"{v:.3f}" if isinstance(v, float) else "" if v is None else v for v in row.values()] for row in rows]
    body = [
        section(
            "Throughput",
            plot(comparison_figure(rows, "subnets_per_second", "subnets per second"), "throughput", caption),
        ),
        section(
            "Bubble",
            plot(comparison_figure(rows, "measured_bubble", "measured bubble"), "bubble", "Idle share of the stages."),
        ),
        section("Measurements", table(cells, head)),
    ]
    write_text(path, standalone_page("NASPipe comparison", body, "main { max-width: 1200px; }"))
