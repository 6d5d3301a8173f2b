"""The report's section on rank checks: the supernet's scores against the truth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from naspipe.records import RankRecord
from naspipe.report.canvas import ACCENT, new_figure
from naspipe.report.figures import axis_title, wrap_text
from naspipe.report.markup import plot, problem, table
from naspipe.report.table import Column, Spread, Table
from naspipe.results.rank_files import RankFiles
from naspipe.search.objective import Objective
from naspipe.search.ranking import describe_correlation

if TYPE_CHECKING:
    from naspipe.results.view import RunView


MAX_ROWS = 30
"""Architectures that a page lists."""


def ranking(run: RunView) -> Iterator[str]:
    """Yield a figure, a table and the warnings of each finished rank check."""
    for record in RankFiles(run.folder.rank_check).results():
        yield plot(ranking_figure(record), f"ranking-{record.against}", _caption(record))
        yield table(ranking_table(record).first(MAX_ROWS))
        for warning in record.warnings:
            yield problem(f"Against {record.against}: {warning}")


def ranking_table(record: RankRecord) -> Table:
    """Return the checked architectures in the supernet's order, each with its score and its truth."""
    truth = f"true {record.truth}" if record.seeds == 1 else f"mean true {record.truth}"
    columns = ("rank", f"supernet {record.score}", "untrained", truth, Column("architecture", wrap="anywhere"))
    caption = f"Of {record.pool:,} random architectures scored; rank 1 is the supernet's best."
    ranked = Table(columns, caption=caption)
    for line in record.architectures:
        found = "failed" if line.truth is None else Spread(line.truth, line.spread)
        ranked.add(line.rank, line.score, line.untrained, found, line.text)
    return ranked


def ranking_figure(record: RankRecord) -> Any:
    """Return the truth of each checked architecture against the supernet's score."""
    score = axis_title(Objective(f"supernet {record.score}", record.score_direction))
    truth = axis_title(Objective(f"true {record.truth}", record.truth_direction))
    lines = [line for line in record.architectures if line.truth is not None]
    figure = new_figure(400, score, truth)
    texts = []
    for line in lines:
        trainings = f"<br>trainings: {', '.join(f'{value:.6g}' for value in line.truths)}" if record.seeds > 1 else ""
        texts.append(f"rank {line.rank} of {record.pool} by the supernet{trainings}<br>{wrap_text(line.text)}")
    spreads = [line.spread for line in lines]
    figure.add_scatter(
        x=[line.score for line in lines], y=[line.truth for line in lines], mode="markers", text=texts,
        error_y={"array": spreads, "visible": record.seeds > 1, "color": ACCENT, "thickness": 1},
        marker={"size": 8, "color": ACCENT, "opacity": 0.7},
        hovertemplate="supernet %{x:.6g}, truth %{y:.6g}<br>%{text}<extra></extra>",
    )  # fmt: skip
    figure.update_layout(margin={"t": 30})
    return figure


def _caption(record: RankRecord) -> str:
    count = sum(line.truth is not None for line in record.architectures)
    if record.against != "retrain":
        truth = f"against the objective {record.against}"
    elif record.seeds == 1:
        truth = "against training each by itself, once"
    else:
        truth = f"against the mean of {record.seeds} trainings of each by itself; bars are standard deviations"
    return (
        f"The supernet's scores of {count} random architectures, {truth}. Kendall's tau "
        f"{describe_correlation(record.kendall)}, Spearman's rho {describe_correlation(record.spearman)}, with "
        "bootstrap 95 % intervals; +1 is the order of the truth, whichever way is better."
    )
