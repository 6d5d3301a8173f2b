"""The page of ``naspipe compare``: throughput and bubble of each training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from naspipe.files import write_text
from naspipe.report.canvas import COLORS, new_figure
from naspipe.report.markup import plot, section, standalone_page, table
from naspipe.report.table import Column, Table

Measurement = Mapping[str, Any]
"""The measurements of one training, by the keys of ``naspipe.verification.comparison.COLUMNS``."""


def comparison_table(rows: Sequence[Measurement]) -> Table:
    """Return a row for each training."""
    columns = [Column(key.replace("_", " "), decimals=3) for key in rows[0]]
    caption = "From the first action to the last; peak memory is each process's, in MiB."
    return Table(columns, [list(row.values()) for row in rows], caption)


def comparison_figure(rows: Sequence[Measurement], key: str, title: str) -> Any:
    """Return a figure with one bar for each training, grouped by stages.

    Args:
        rows: One for each training.
        key: The column that is drawn.
        title: Title of its axis.
    """
    figure = new_figure(360, "stages", title)
    series: dict[str, list[Measurement]] = {}
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


def write_comparison(rows: Sequence[Measurement], path: Path, caption: str) -> None:
    """Write a self-contained page.

    Args:
        rows: One for each training, at least one.
        path: File to write.
        caption: The command that measured them.
    """
    body = [
        section(
            "Throughput",
            plot(comparison_figure(rows, "subnets_per_second", "subnets per second"), "throughput", caption),
        ),
        section(
            "Bubble",
            plot(comparison_figure(rows, "measured_bubble", "measured bubble"), "bubble", "Idle share of the stages."),
        ),
        section("Measurements", table(comparison_table(rows))),
    ]
    write_text(path, standalone_page("NASPipe comparison", body, "main { max-width: 1200px; }"))
