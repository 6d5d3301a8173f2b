"""The report's section on the retraining: curves of its rows, their scores, and the spread over seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from naspipe.report.canvas import ACCENT, SOFT, new_figure
from naspipe.report.markup import note, plot, problem, table
from naspipe.report.records import read_records
from naspipe.report.table import Column, Spread, Table
from naspipe.results.retraining_rows import (
    LOSS,
    RetrainingRow,
    deciding_metric,
    metric_names,
    row_folder,
    spreads,
)

if TYPE_CHECKING:
    from naspipe.records import RowScores
    from naspipe.results.view import RunView

STARTS = {
    "scratch": "fresh weights",
    "inherit": "the supernet's weights as they are",
    "finetune": "the supernet's weights, trained further",
}
"""Explanations of the values of ``retrain.init``."""

DASHES = {"scratch": "solid", "finetune": "dash"}
"""How the curve of each start is drawn."""

COLORS = (ACCENT, "#b45309", "#1d4ed8", "#9f1239", "#6d28d9", "#4d7c0f")
"""Of the curves, one colour for each architecture; further architectures are grey."""


def retraining(run: RunView) -> Iterator[str]:
    """Yield the loss of the epochs of every row, the final scores, and their spread over seeds."""
    rows = run.rows() if run.folder.best_architecture.exists() else []
    logged = [(row, *read_records(row_folder(run.folder, row).logged())) for row in rows]
    for _, _, damage in logged:
        yield problem(damage)
    scores = run.retrained() if rows else []
    if not scores and not any(records for _, records, _ in logged):
        yield note("Nothing has been retrained yet.")
        return
    settings = run.config.retrain
    yield note(
        f"{len(scores)} of {len(rows)} row{'s' if len(rows) > 1 else ''} finished: an architecture, its start and a "
        f"seed each. {'; '.join(f'{init}: {STARTS[init]}' for init in settings.inits)}. {settings.epochs:,} epochs"
        f"{f', {settings.processes} data-parallel processes' if settings.processes > 1 else ''}."
    )
    curves = [(row, [record.loss for record in records]) for row, records, _ in logged if len(records) > 1]
    if curves:
        yield plot(_curves(curves), "retraining", "Training loss of each epoch of the retraining.")
    if len(rows) == 1 and scores:
        yield table(_splits(scores[0]))
    elif scores:
        yield from map(table, (*score_tables(run, scores), _architectures(scores)))
    if run.folder.best_metrics.exists():
        yield note(f"Weights: {run.folder.best_model.relative_to(run.path)}")


def _curves(curves: Sequence[tuple[RetrainingRow, list[float]]]) -> Any:
    """Return the loss over the epochs: a colour for each architecture, a dash for each start; seeds look alike."""
    figure = new_figure(260, "epoch", "training loss")
    trials = list(dict.fromkeys(row.trial for row, _ in curves))
    named: set[str] = set()
    for row, losses in curves:
        place, group = trials.index(row.trial), f"trial {row.trial}, {row.init}"
        figure.add_scatter(
            x=list(range(1, len(losses) + 1)), y=losses, mode="lines+markers", name=group, legendgroup=group,
            line={
                "color": COLORS[place] if place < len(COLORS) else SOFT, "width": 2.5 if len(curves) == 1 else 1.8,
                "dash": DASHES[row.init],
            },
            marker={"size": 4}, hovertemplate=f"{row.describe()}<br>epoch %{{x}}: %{{y:.6g}}<extra></extra>",
            # Once for all seeds; pointing at a grey curve shows its name.
            showlegend=group not in named and len(curves) > 1 and place < len(COLORS),
        )  # fmt: skip
        named.add(group)
    if len(curves) == 1:
        figure.update_layout(margin={"t": 30})
    else:
        # A telephone has room for two names beside each other.
        top = 30 + 22 * -(-sum(bool(curve.showlegend) for curve in figure.data) // 2)
        figure.update_layout(margin={"t": top}, height=270 + top)
    if max(len(losses) for _, losses in curves) <= 10:
        figure.update_xaxes(dtick=1)
    return figure


def score_tables(run: RunView, scores: Sequence[RowScores], brief: bool = False) -> list[Table]:
    """Return the table of finished rows, and where a row has several seeds that of the means over them.

    Args:
        run: Their run.
        scores: The finished rows, at least one.
        brief: Leave out all metrics but the loss and the one that decides.
    """
    metric = deciding_metric(scores, run.components.objectives)
    first = metric.name if metric else None
    names = [name for name in metric_names(scores, first) if not brief or name in (first, LOSS.name)]
    columns = [(split, name) for name in names for split in ("validation", "test")]
    head = [f"{split} {name}" for split, name in columns]
    best = run.folder.best_scores() if run.folder.best_metrics.exists() else None
    caption = "Scores of the retrained subnets; the test split was used once a row, after its training."
    if best is not None and best.chosen_by is not None:
        caption += f" The best row is that of the best validation {best.chosen_by}; the test split decides nothing."
    single = Table(("trial", "start", "seed", *head, "parameters", ""), caption=caption)
    for row in scores:
        won = best is not None and (row.trial, row.init, row.seed) == (best.trial, best.init, best.seed)
        values = [getattr(row, split).get(name) for split, name in columns]
        single.add(str(row.trial), row.init, row.seed, *values, row.parameters, "best" if won else "")
    groups = spreads(scores)
    if all(len(group.rows) == 1 for group in groups):
        return [single]
    caption = "Mean and sample standard deviation over the seeds of an architecture from one start."
    means = Table(("trial", "start", "seeds", *head), caption=caption)
    for group in groups:
        found = [group.mean(split, name) for split, name in columns]
        cells = [None if pair is None else Spread(*pair) for pair in found]
        means.add(str(group.rows[0].trial), group.rows[0].init, len(group.rows), *cells)
    return [single, means]


def _splits(row: RowScores) -> Table:
    names = metric_names([row], None)
    rows = [(split, *map(values.get, names)) for split, values in (("validation", row.validation), ("test", row.test))]
    caption = "Scores of the retrained subnet; the test split was used once, at the end."
    return Table(("split", *names), rows, caption)


def _architectures(scores: Sequence[RowScores]) -> Table:
    rows = {row.trial: (str(row.trial), row.text) for row in scores}
    columns = ("trial", Column("architecture", wrap="anywhere"))
    return Table(columns, rows.values(), "The architectures.")
