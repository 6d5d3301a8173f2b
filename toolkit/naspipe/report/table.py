"""Tables and numbers for people, on pages and in terminals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Wrap = Literal["words", "never", "anywhere"]


class Spread(NamedTuple):
    """A cell with a mean and a standard deviation.

    Attributes:
        mean: The mean.
        deviation: The standard deviation; None of a single value.
    """

    mean: float
    deviation: float | None


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: Its head; a table whose titles are all empty is shown without a head.
        right: Whether its cells are aligned at the right.
        wrap: Where a cell may be broken into lines; "anywhere" is for the texts of architectures.
        decimals: Decimals of numbers that are not whole.
    """

    title: str
    right: bool = False
    wrap: Wrap = "words"
    decimals: int = 4


class Table:
    """Columns, rows and a caption; ``markup.table`` and ``cli.output.show_table`` show it.

    Attributes:
        columns: The columns.
        rows: For each row its cells: texts, numbers, spreads, or None for an empty cell.
        caption: Sentences about the table; may be empty.
    """

    def __init__(
        self, columns: Iterable[str | Column], rows: Iterable[Sequence[object]] = (), caption: str = ""
    ) -> None:
        """Make a table; a text among the columns is the title of a plain one."""
        self.columns = [Column(column) if isinstance(column, str) else column for column in columns]
        self.rows = list(rows)
        self.caption = caption

    def add(self, *cells: object) -> None:
        """Add a row."""
        self.rows.append(cells)

    def first(self, count: int) -> Table:
        """Return a table of the first rows, whose caption says how many there are."""
        if len(self.rows) <= count:
            return self
        rest = f"The first {count} of {len(self.rows):,} rows are shown."
        return Table(self.columns, self.rows[:count], f"{self.caption} {rest}".lstrip())

    def texts(self, plus_minus: str) -> Iterator[list[str]]:
        """Yield the cells of each row as texts.

        Args:
            plus_minus: The sign between a mean and its deviation.
        """
        for row in self.rows:
            yield [_text(cell, column.decimals, plus_minus) for column, cell in zip(self.columns, row, strict=True)]


def number(value: object, decimals: int = 4) -> str:
    """Return a value as people read it: counts in full, other numbers with some decimals, None as an empty text.

    Numbers of ten thousand and more are rounded to whole ones. Those that have no such decimals keep as many
    significant digits.
    """
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return "" if value is None else str(value)
    size = abs(value)
    if 1 < size < 1e15 and (value.is_integer() or size >= 1e4):
        return f"{value:,.0f}"
    if size >= 1e15 or 0 < size < 10**-decimals:
        return f"{value:.{decimals}g}"
    return f"{value:.{decimals}f}"


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Return metrics on one line, each with its name."""
    return ", ".join(f"{name} {number(value)}" for name, value in metrics.items())


def _text(cell: object, decimals: int, plus_minus: str) -> str:
    if not isinstance(cell, Spread):
        return number(cell, decimals)
    mean = number(cell.mean, decimals)
    return mean if cell.deviation is None else f"{mean} {plus_minus} {number(cell.deviation, decimals)}"
