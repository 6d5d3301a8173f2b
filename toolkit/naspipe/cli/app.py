"""The commands of ``naspipe``."""

from __future__ import annotations

import sys
import traceback
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from naspipe.errors import NaspipeError, NaspipeWarning

# Everything else is imported within the commands, so that --help is quick.

app = typer.Typer(
    name="naspipe",
    help="Neural architecture search with reproducible supernet training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

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


@app.command()
def run(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG]", help="A run's YAML file.  [default: the digits example]"),
    ] = None,
    out: OutOption = None,
    overrides: SetOption = None,
) -> None:
    """Train, search, retrain the best subnet and write the report."""
    from naspipe.cli.output import show_result, watching
    from naspipe.components import load_config
    from naspipe.runs.run import Run

    path = config if config is not None else default_config()
    loaded = load_config(path, overrides or [])
    with watching() as watch:
        new = Run.create(loaded, out, watch)
        typer.echo(f"Run folder: {new.path}")
        new.train().search().retrain().report()
    show_result(new)


@app.command()
def train(config: ConfigArgument, out: OutOption = None, overrides: SetOption = None) -> None:
    """Train a supernet in a new run folder."""
    from naspipe.cli.output import watching
    from naspipe.components import load_config
    from naspipe.runs.run import Run

    loaded = load_config(config, overrides or [])
    with watching() as watch:
        new = Run.create(loaded, out, watch)
        typer.echo(f"Run folder: {new.path}")
        new.train()
    typer.echo(f"Supernet    {new.folder.supernet}")
    typer.echo(f"Digest      {new.digest}")
    typer.echo(f"Next        naspipe search {new.path}")


@app.command()
def search(run_folder: RunArgument) -> None:
    """Search the trained supernet of a run; a search that was broken off goes on."""
    from naspipe.cli.output import watching
    from naspipe.files import read_json
    from naspipe.runs.run import Run

    with watching() as watch:
        opened = Run.open(run_folder, watch).search()
    best = read_json(opened.folder.best_architecture)
    typer.echo(f"Best architecture  {best['text']}")
    typer.echo(f"Supernet scores    {_scores(best['metrics'])}")
    typer.echo(f"Next               naspipe retrain {opened.path}")


@app.command()
def retrain(run_folder: RunArgument) -> None:
    """Retrain the best architecture of a run, save it and test it."""
    from naspipe.cli.output import show_result, watching
    from naspipe.runs.run import Run

    with watching() as watch:
        opened = Run.open(run_folder, watch).retrain()
        opened.report()
    show_result(opened)


@app.command()
def report(run_folder: RunArgument) -> None:
    """Write report.html from what a run has so far."""
    from naspipe.runs.run import Run

    typer.echo(f"Report  {Run.open(run_folder).report()}")


@app.command()
def validate(config: ConfigArgument, overrides: SetOption = None) -> None:
    """Check a configuration and print what it would run; trains nothing."""
    from naspipe.cli.validate import show_validation
    from naspipe.components import load_config

    show_validation(load_config(config, overrides or []))


@app.command()
def plugins(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A plug-in, to see its parameters.")
    ] = None,
) -> None:
    """List the known plug-ins, or the parameters of one."""
    from naspipe.cli.plugins import show_plugin, show_plugins

    if name is None:
        show_plugins()
    else:
        show_plugin(name)


@app.command()
def doctor() -> None:
    """Show versions, devices, threads and backends, and what is missing."""
    from naspipe.cli.doctor import show_doctor

    if not show_doctor():
        raise typer.Exit(1)


def default_config() -> Path:
    """Return the path of the example that comes with the package."""
    return Path(__file__).resolve().parent.parent / "examples" / "digits.yaml"


def _scores(metrics: dict[str, Any]) -> str:
    from naspipe.cli.output import format_metrics

    return format_metrics(metrics)


def _show_warning(message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
    if issubclass(category, NaspipeWarning):
        typer.echo(f"Warning: {message}", err=True)
    else:
        sys.stderr.write(warnings.formatwarning(message, category, *rest[:2]))


def main() -> None:
    """Run the command line; errors of NASPipe end it with their exit code and without a traceback.

    Exit codes: 0 done, 1 failed while running, 2 bad input, 130 interrupted.
    """
    warnings.showwarning = _show_warning
    warnings.simplefilter("always", NaspipeWarning)
    try:
        app()
    except NaspipeError as error:
        cause = error.__cause__
        if error.exit_code == 1 and cause is not None and not isinstance(cause, NaspipeError):
            traceback.print_exception(cause)
        typer.echo(f"Error: {error}", err=True)
        raise SystemExit(error.exit_code) from None
