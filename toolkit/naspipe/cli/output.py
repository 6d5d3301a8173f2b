"""What the commands print while a run goes on, and at its end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from naspipe.training.progress import Progress, Watch

LINES = 10
"""Plain progress lines of each phase when the output is no terminal."""

_TITLES = {
    "train": "Training", "search": "Search", "retrain": "Retraining",
    "score": "Scores", "untrained": "Untrained", "truth": "Truth",
}  # fmt: skip


@contextmanager
def watching() -> Iterator[Watch]:
    """Show progress, bars on a terminal and a few plain lines elsewhere, and say so if interrupted."""
    console = Console()
    try:
        if console.is_terminal:
            with _bars(console) as watch:
                yield watch
        else:
            yield _PlainLines()
    except KeyboardInterrupt as error:
        # The phase says how to go on; typer ends the process with exit code 130.
        text = str(error) or "Interrupted; what was computed is in the run folder."
        typer.echo(text, err=True)
        raise


def say(line: str) -> None:
    """Print a line; if whoever read the output has gone, as in ``| head``, the run goes on unheard."""
    try:
        print(line, flush=True)  # noqa: T201  # the command line prints
    except BrokenPipeError:
        # What is left in the buffer would fail again when the process ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        typer.echo("Warning: nothing reads the output any more; the run goes on.", err=True)


@contextmanager
def _bars(console: Console) -> Iterator[Watch]:
    columns = (
        TextColumn("{task.description:<11}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[detail]}"),
    )
    with Bars(*columns, console=console) as bars:
        tasks: dict[str, Any] = {}

        def watch(progress: Progress) -> None:
            if progress.phase not in tasks:
                tasks[progress.phase] = bars.add_task(_TITLES[progress.phase], total=progress.total, detail="")
            bars.update(
                tasks[progress.phase],
                completed=progress.done,
                total=progress.total,
                detail=progress.detail,
            )

        yield watch


class _PlainLines:
    """Prints about ten lines for each phase, of which the first says where it begins or goes on."""

    def __init__(self) -> None:
        self._begun: set[str] = set()

    def __call__(self, progress: Progress) -> None:
        step = max(1, progress.total // LINES)
        is_first = progress.phase not in self._begun
        self._begun.add(progress.phase)
        if is_first or progress.done % step == 0 or progress.done == progress.total:
            title = _TITLES[progress.phase]
            width = len(str(progress.total))
            say(f"{title:<11} {progress.done:>{width}}/{progress.total}  {progress.detail}")


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Return metrics on one line: numbers below a thousand with four digits, counts in full."""
    return ", ".join(
        f"{name} {value:,}" if isinstance(value, int) else f"{name} {value:.4f}" for name, value in metrics.items()
    )
