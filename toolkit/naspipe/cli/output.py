"""Lines, tables and progress, as all commands print them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, OverflowMethod, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table as RichTable
from rich.text import Text

from naspipe.report.table import Table, Wrap

if TYPE_CHECKING:
    from naspipe.training.progress import Progress, Watch

LINES, FEW_LINES = 10, 2
"""Plain progress lines of each phase, and of each training of a command that prints data."""

UNBROKEN = 100_000
"""The width of a pipe or a file in columns: no line is broken there."""

_OVERFLOW: dict[Wrap, OverflowMethod] = {"words": "ellipsis", "never": "ellipsis", "anywhere": "fold"}

_TITLES = {
    "train": "Training", "search": "Search", "retrain": "Retraining",
    "score": "Scores", "untrained": "Untrained", "truth": "Truth",
}  # fmt: skip


def say(line: str) -> None:
    """Print a line; if nothing reads the output any more, as after ``| head``, the command continues unheard."""
    try:
        print(line, flush=True)  # noqa: T201  # the command line prints
    except BrokenPipeError:
        # The text that is left in the buffer would fail again when the process ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        typer.echo("Warning: nothing reads the output any more; the command continues.", err=True)


def announce(doing: str, path: Path, data: bool = False) -> None:
    """Print the first line of a command, before its imports, which take seconds.

    Args:
        doing: As in "Checking".
        path: The file or folder.
        data: The command prints data; the line goes to standard error.
    """
    line = f"{doing} {path}"
    if data:
        typer.echo(line, err=True)
    else:
        say(line)


def show(content: RenderableType, console: Console | None = None) -> None:
    """Print lines of text or a table in the width of the terminal, or unbroken where there is none."""
    console = Console() if console is None else console
    if not console.is_terminal:
        console = Console(width=UNBROKEN)
    with console.capture() as captured:
        console.print(content, crop=False)
    for line in captured.get().splitlines():
        say(line.rstrip())


def show_table(table: Table) -> None:
    """Print a table, and its caption below."""
    shown = RichTable(box=None, pad_edge=False)
    for column in table.columns:
        shown.add_column(
            Text(column.title), justify="right" if column.right else "left", no_wrap=column.wrap == "never",
            overflow=_OVERFLOW[column.wrap],
        )  # fmt: skip
    for cells in table.texts("+-"):
        shown.add_row(*map(Text, cells))
    show(shown)
    if table.caption:
        say(table.caption)


@contextmanager
def watching(data: bool = False) -> Iterator[Watch]:
    """Show progress, as bars on a terminal and as a few plain lines elsewhere, and say so if interrupted.

    Args:
        data: The command prints data, and keeps nothing: progress goes to standard error, and bars vanish at the end.
    """
    console = Console(stderr=True) if data else Console()
    try:
        if console.is_terminal:
            with _bars(console, data) as watch:
                yield watch
        else:
            yield _PlainLines(data)
    except KeyboardInterrupt as error:
        # The phase says how to resume; typer ends the process with exit code 130.
        text = str(error) or ("" if data else "Interrupted; what was computed is in the run folder.")
        if text:
            typer.echo(text, err=True)
        raise


@contextmanager
def _bars(console: Console, data: bool) -> Iterator[Watch]:
    columns = (
        TextColumn("{task.description:<11}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[detail]}"),
    )
    # Lines that go to standard output must not be printed above bars on standard error.
    with Bars(*columns, console=console, transient=data, redirect_stdout=not data) as bars:
        tasks: dict[str, Any] = {}
        done: dict[str, int] = {}

        def watch(progress: Progress) -> None:
            phase = progress.phase
            if progress.done == 0:
                bars.console.print(Text(_sentence(progress)))
                return
            if phase not in tasks:
                tasks[phase] = bars.add_task(_TITLES[phase], total=progress.total, detail="")
            elif progress.done < done[phase]:
                # The next one of several trainings.
                bars.reset(tasks[phase], total=progress.total)
            done[phase] = progress.done
            bars.update(tasks[phase], completed=progress.done, total=progress.total, detail=progress.detail)

        yield watch


class _PlainLines:
    """Prints about ten lines for each phase; the first one says with which step the phase begins or resumes."""

    def __init__(self, data: bool) -> None:
        """Print to standard error, and fewer lines, if the command prints data."""
        self._data = data
        self._begun: set[str] = set()

    def __call__(self, progress: Progress) -> None:
        if progress.done == 0:
            self._print(_sentence(progress))
            return
        step = max(1, progress.total // (FEW_LINES if self._data else LINES))
        is_first = progress.phase not in self._begun and not self._data
        self._begun.add(progress.phase)
        if is_first or progress.done % step == 0 or progress.done == progress.total:
            width = len(str(progress.total))
            title = _TITLES[progress.phase]
            self._print(f"{title:<11} {progress.done:>{width}}/{progress.total}  {progress.detail}")

    def _print(self, line: str) -> None:
        if self._data:
            typer.echo(line, err=True)
        else:
            say(line)


def _sentence(progress: Progress) -> str:
    """Return the detail of a phase that prepares its first step, as a sentence."""
    return f"{progress.detail[:1].upper()}{progress.detail[1:]}"
