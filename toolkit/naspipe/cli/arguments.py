"""Arguments and options that several commands have, and how their texts are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from naspipe.errors import InputError

Value = TypeVar("Value")

ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="A run's YAML file.")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", help="The run's folder, which must not exist.  [default: new, below runs/]"),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key; may be repeated."),
]
TraceOption = Annotated[bool, typer.Option("--trace", help="Record what each stage did and saw.")]
ExecutorsOption = Annotated[str, typer.Option(help="Executors; options as in gpipe:bulk=4.")]
StagesOption = Annotated[str, typer.Option(help="Numbers of stages.")]
CsvOption = Annotated[Path | None, typer.Option("--csv", help="Write a row for each measurement.")]
FigureOption = Annotated[Path | None, typer.Option("--html", help="Write a figure.")]


def parse_list(text: str, option: str, convert: Callable[[str], Value]) -> list[Value]:
    """Return a comma-separated list.

    Raises:
        InputError: It is empty, or an entry cannot be converted.
    """
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    if not entries:
        raise InputError(f"{option} must be a list such as a,b,c, but got {text!r}.")
    return [convert(entry) for entry in entries]


def parse_counts(text: str, option: str, least: int = 1) -> list[int]:
    """Return a comma-separated list of integers of at least ``least``.

    Raises:
        InputError: It is empty, or an entry is no such integer.
    """

    def convert(entry: str) -> int:
        if not entry.isascii() or not entry.isdigit() or int(entry) < least:
            raise InputError(f"{option} must be integers of at least {least}, but got {entry!r}.")
        return int(entry)

    return parse_list(text, option, convert)


def one_of(option: str, allowed: Sequence[str]) -> Callable[[str], str]:
    """Return a converter that refuses all other words."""

    def convert(entry: str) -> str:
        if entry not in allowed:
            raise InputError(f"{option} must be of {', '.join(allowed)}, but got {entry!r}.")
        return entry

    return convert
