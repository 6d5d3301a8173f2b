"""``naspipe simulate``: executors and samplers compared on abstract spaces."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from naspipe.errors import InputError
from naspipe.files import write_csv
from naspipe.pipeline.simulation import COLUMNS, Simulation

Value = TypeVar("Value")
KEYS = ("space", "executor", "sampler", "distance", "stages", "microbatches", "segments", "delay")


def parse_list(text: str, option: str, convert: Callable[[str], Value]) -> list[Value]:
    """Return a comma-separated list.

    Raises:
        InputError: It is empty, or an entry cannot be converted.
    """
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    if not entries:
        raise InputError(f"{option} must be a list such as a,b,c, but got {text!r}.")
    return [convert(entry) for entry in entries]


def count(option: str, least: int = 1) -> Callable[[str], int]:
    """Return a converter to integers of at least ``least``."""

    def convert(entry: str) -> int:
        if not entry.isascii() or not entry.isdigit() or int(entry) < least:
            raise InputError(f"{option} must be integers of at least {least}, but got {entry!r}.")
        return int(entry)

    return convert


def one_of(option: str, allowed: Sequence[str]) -> Callable[[str], str]:
    """Return a converter that lets only some words through."""

    def convert(entry: str) -> str:
        if entry not in allowed:
            raise InputError(f"{option} must be of {', '.join(allowed)}, but got {entry!r}.")
        return entry

    return convert


def show_simulation(simulation: Simulation, csv_file: Path | None, html_file: Path | None) -> None:
    """Run the simulations, print a table of means with spread, and write the files asked for."""
    simulation.check()
    rows: list[dict[str, Any]] = []
    console = Console()
    shown = track(simulation.run(), total=simulation.count, console=console, disable=not console.is_terminal)
    rows.extend(shown)
    table = Table(*KEYS, "bubble", "+-", "makespan / bound", "+-", "distinct", box=None, pad_edge=False)
    for values, group in group_rows(rows):
        bubbles = [row["bubble"] for row in group]
        ratios = [row["makespan"] / row["bound"] for row in group]
        distinct = statistics.mean(row["distinct"] for row in group)
        cells = ["" if value is None else str(value) for value in values]
        table.add_row(
            *cells, f"{statistics.mean(bubbles):.4f}", f"{statistics.pstdev(bubbles):.4f}",
            f"{statistics.mean(ratios):.4f}", f"{statistics.pstdev(ratios):.4f}", f"{distinct:.0f}",
        )  # fmt: skip
    (console if console.is_terminal else Console(width=200)).print(table)
    typer.echo(f"Means and standard deviations over {simulation.seeds} seeds of {simulation.subnets} subnets.")
    if csv_file is not None:
        write_csv(csv_file, COLUMNS, rows)
        typer.echo(f"CSV        {csv_file}")
    if html_file is not None:
        from naspipe.report.simulation import write_simulation

        write_simulation(rows, html_file, " ".join(["naspipe", *sys.argv[1:]]))
        typer.echo(f"Figure     {html_file}")


def group_rows(rows: Sequence[dict[str, Any]]) -> list[tuple[tuple[Any, ...], list[dict[str, Any]]]]:
    """Return the rows of each combination, in order of their first occurrence."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in KEYS), []).append(row)
    return list(groups.items())
