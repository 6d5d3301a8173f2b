"""The table of a retraining, and what spreads over its seeds."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from naspipe.cli.output import say
from naspipe.results.retraining_rows import LOSS, Spread, deciding_metric, spreads

if TYPE_CHECKING:
    from naspipe.results.view import RunView

WIDTH = 200
"""Columns where the output is no terminal."""


def show_rows(run: RunView) -> None:
    """Print a line for each finished row, and for each architecture and start its mean over several seeds."""
    rows, best = run.retrained(), run.folder.best_scores()
    metric = deciding_metric(rows, run.components.objectives)
    measured = {name for row in rows for name in (*row.validation, *row.test)}
    wanted = dict.fromkeys([*([metric.name] if metric else []), LOSS.name])
    columns = [(split, name) for name in wanted if name in measured for split in ("validation", "test")]
    head = [f"{split} {name}" for split, name in columns]
    table = Table("trial", "start", "seed", *head, "parameters", "", box=None, pad_edge=False)
    for row in rows:
        won = (row.trial, row.init, row.seed) == (best.trial, best.init, best.seed)
        cells = [_format(getattr(row, split).get(name)) for split, name in columns]
        table.add_row(str(row.trial), row.init, str(row.seed), *cells, f"{row.parameters:,}", "best" if won else "")
    _print(table)
    groups = spreads(rows)
    if any(len(group.rows) > 1 for group in groups):
        say("")
        _print(_spread_table(groups, columns, head))
        say("Means and sample standard deviations over the seeds.")
    if best.chosen_by is not None:
        say(f"The best row is that of the best validation {best.chosen_by}; the test split decides nothing.")
    say("")


def _spread_table(groups: Sequence[Spread], columns: Sequence[tuple[str, str]], head: Sequence[str]) -> Table:
    table = Table("trial", "start", "seeds", *head, box=None, pad_edge=False)
    for group in groups:
        cells = []
        for split, name in columns:
            mean, deviation = group.mean(split, name) or (None, None)
            cells.append(_format(mean) if deviation is None else f"{_format(mean)} +- {deviation:.4f}")
        table.add_row(str(group.rows[0].trial), group.rows[0].init, str(len(group.rows)), *cells)
    return table


def _format(value: float | None) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def _print(table: Table) -> None:
    """Print a table by way of ``say``, which bears a reader that has gone."""
    console = Console()
    text = io.StringIO()
    Console(file=text, width=console.width if console.is_terminal else WIDTH, highlight=False).print(table)
    for line in text.getvalue().splitlines():
        say(line.rstrip())
