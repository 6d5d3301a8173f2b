"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
