"""The retraining in a report: curves of its rows, their scores, and what spreads over seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from naspipe.report.figures import ACCENT, SOFT, new_figure
from naspipe.report.markup import note, number, plot, problem, table
from naspipe.report.records import read_records
from naspipe.results.retraining_rows import RetrainingRow, deciding_metric, metric_names, row_folder, spreads

if TYPE_CHECKING:
    from naspipe.records import RowScores
    from naspipe.results.view import RunView

STARTS = {
    "scratch": "fresh weights",
    "inherit": "the supernet's weights as they are",
    "finetune": "the supernet's weights, trained further",
}
"""What ``retrain.init`` means, for people."""

DASHES = {"scratch": "solid", "finetune": "dash"}
"""How the curve of each start is drawn."""

COLORS = (ACCENT, "#b45309", "#1d4ed8", "#9f1239", "#6d28d9", "#4d7c0f")
"""Of the curves, one an architecture; further ones are grey."""


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
        yield _splits(scores[0])
    elif scores:
        yield from _table(run, scores)
    if run.folder.best_metrics.exists():
        yield note(f"Weights: {run.folder.best_model.relative_to(run.path)}")


def _curves(curves: Sequence[tuple[RetrainingRow, list[float]]]) -> Any:
    """Return the loss over the epochs: a colour an architecture, a dash a start; seeds look alike."""
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
            # Once for all seeds; more architectures than have a colour are told apart by pointing at them.
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


def _splits(row: RowScores) -> str:
    names = metric_names([row], None)
    lines = [
        (split, *(number(values[name]) if name in values else "" for name in names))
        for split, values in (("validation", row.validation), ("test", row.test))
    ]
    return table(lines, ("split", *names), "Scores of the retrained subnet; the test split was used once, at the end.")


def _table(run: RunView, scores: Sequence[RowScores]) -> Iterator[str]:
    metric = deciding_metric(scores, run.components.objectives)
    names = metric_names(scores, metric.name if metric else None)
    columns = [(split, name) for name in names for split in ("validation", "test")]
    head = [f"{split} {name}" for split, name in columns]
    best = run.folder.best_scores() if run.folder.best_metrics.exists() else None
    lines = []
    for row in scores:
        won = best is not None and (row.trial, row.init, row.seed) == (best.trial, best.init, best.seed)
        values = [getattr(row, split).get(name) for split, name in columns]
        cells = ["" if value is None else number(value) for value in values]
        lines.append((row.trial, row.init, row.seed, *cells, "best" if won else ""))
    by = f"; the best is that of the best validation {best.chosen_by}" if best is not None and best.chosen_by else ""
    yield table(
        lines, ("trial", "start", "seed", *head, ""),
        f"Scores of the retrained subnets{by}. The test split was used once a row, after its training, and decides "
        "nothing.",
    )  # fmt: skip
    groups = spreads(scores)
    if any(len(group.rows) > 1 for group in groups):
        yield table(
            [
                (group.rows[0].trial, group.rows[0].init, len(group.rows),
                 *(_spread(group.mean(split, name)) for split, name in columns))
                for group in groups
            ],
            ("trial", "start", "seeds", *head),
            "Mean and sample standard deviation over the seeds of an architecture from one start.",
        )  # fmt: skip
    architectures = {row.trial: (row.trial, number(row.parameters), row.text) for row in scores}
    yield table(list(architectures.values()), ("trial", "parameters", "architecture"), "The architectures.", code=2)


def _spread(found: tuple[float, float | None] | None) -> str:
    if found is None:
        return ""
    mean, deviation = found
    return number(mean) if deviation is None else f"{number(mean)} ± {deviation:.2g}"
