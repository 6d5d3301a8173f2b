"""``naspipe compare``: executors, samplers and stage counts measured on one training."""

from __future__ import annotations

import sys
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from naspipe.files import write_csv
from naspipe.verification.comparison import COLUMNS, Comparison


def show_comparison(comparison: Comparison, csv_file: Path | None, html_file: Path | None) -> None:
    """Train each combination, print a row as it ends, and write the files asked for."""
    rows = list(comparison.run())
    table = Table(*(column.replace("_", " ") for column in COLUMNS), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(f"{row[key]:.3f}" if isinstance(row[key], float) else str(row[key]) for key in COLUMNS))
    console = Console()
    (console if console.is_terminal else Console(width=220)).print(table)
    typer.echo("From the first action to the last; peak memory is each process's, in MiB.")
    if csv_file is not None:
        write_csv(csv_file, COLUMNS, rows)
        typer.echo(f"CSV        {csv_file}")
    if html_file is not None:
        from naspipe.report.comparison import write_comparison

        write_comparison(rows, html_file, " ".join(["naspipe", *sys.argv[1:]]))
        typer.echo(f"Figure     {html_file}")
