"""The measurements of ``naspipe compare`` and ``naspipe simulate``: a table, a CSV file and a page."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import track

from naspipe.cli.output import say, show_table, watching
from naspipe.files import write_csv
from naspipe.pipeline.simulation import Simulation
from naspipe.report.comparison import comparison_table, write_comparison
from naspipe.report.simulation import group_rows, write_simulation
from naspipe.report.table import Spread, Table

if TYPE_CHECKING:
    from naspipe.verification.comparison import Comparison

KEYS = ("space", "executor", "sampler", "distance", "stages", "microbatches", "segments", "delay")
"""The keys of a simulation that its seeds share."""

Rows = Sequence[dict[str, Any]]


def show_comparison(comparison: Comparison, csv_file: Path | None, html_file: Path | None) -> None:
    """Train each combination, print a row for each, and write the files."""
    with watching(data=True) as watch:
        rows = list(comparison.run(watch))
    show_table(comparison_table(rows))
    _write(rows, csv_file, html_file, write_comparison)


def show_simulation(simulation: Simulation, csv_file: Path | None, html_file: Path | None) -> None:
    """Run the simulations, print a table of means with spread, and write the files."""
    simulation.check()
    console = Console(stderr=True)
    rows = list(track(simulation.run(), total=simulation.count, console=console, disable=not console.is_terminal))
    caption = f"Means and standard deviations over {simulation.seeds} seeds of {simulation.subnets} subnets."
    table = Table((*KEYS, "bubble", "makespan / bound", "distinct"), caption=caption)
    for values, group in group_rows(rows, KEYS).items():
        cells = ["" if value is None else str(value) for value in values]
        distinct = statistics.mean(row["distinct"] for row in group)
        table.add(
            *cells, _spread([row["bubble"] for row in group]),
            _spread([row["makespan"] / row["bound"] for row in group]), f"{distinct:.0f}",
        )  # fmt: skip
    show_table(table)
    _write(rows, csv_file, html_file, write_simulation)


def _spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.mean(values), statistics.pstdev(values))


def _write(
    rows: Rows, csv_file: Path | None, html_file: Path | None, write_page: Callable[[Rows, Path, str], None]
) -> None:
    """Write the rows to the given files; a page names the command that measured its rows."""
    if csv_file is not None:
        write_csv(csv_file, list(rows[0]), rows)
        say(f"CSV        {csv_file}")
    if html_file is not None:
        write_page(rows, html_file, " ".join(["naspipe", *sys.argv[1:]]))
        say(f"Figure     {html_file}")
