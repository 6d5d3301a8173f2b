"""The command line: its commands, its warnings and its exit codes."""

from __future__ import annotations

import sys
import traceback
import warnings
from typing import Any

import typer

from naspipe.cli.doctor import doctor
from naspipe.cli.plugins import plugins
from naspipe.cli.run_commands import export, rank_check, report, resume, retrain, run, search, train
from naspipe.cli.schedule_commands import compare, plan, simulate, validate, verify
from naspipe.environment import is_follower, torchrun_processes
from naspipe.errors import InputError, NaspipeError, NaspipeWarning

app = typer.Typer(
    name="naspipe",
    help="Neural architecture search with reproducible supernet training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for command in (
    run, train, resume, search, retrain, rank_check, export, report, validate, plan, verify, compare, simulate, doctor,
):  # fmt: skip
    app.command(command.__name__.replace("_", "-"))(command)
app.add_typer(plugins, name="plugins")


def _show_warning(message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
    if issubclass(category, NaspipeWarning):
        typer.echo(f"Warning: {message}", err=True)
    else:
        sys.stderr.write(warnings.formatwarning(message, category, *rest[:2]))


def _run_under_torchrun(command: list[str]) -> None:
    """Run the command in the leading process of torchrun; the other processes train their stages for it.

    Raises:
        InputError: The command is not for several processes.
        TrainingError: The training of this process's stage failed, or the leading process failed.
    """
    if command not in (["run"], ["train"], ["resume"]):
        raise InputError(
            f"torchrun serves `naspipe run`, `naspipe train` and `naspipe resume`, but has started "
            f"{torchrun_processes()} processes of `naspipe {' '.join(command)}`. Start it without torchrun."
        )
    from naspipe.training.distributed.torchrun import follow, leading

    if is_follower():
        follow()
        return
    with leading():
        app()


def main() -> None:
    """Run the command line; errors of NASPipe end it with their exit code and without a traceback.

    Exit codes: 0 done, 1 failed while running, 2 bad input, 130 interrupted, 143 stopped by SIGTERM.
    """
    warnings.showwarning = _show_warning
    warnings.simplefilter("always", NaspipeWarning)
    try:
        if torchrun_processes() > 1 and "--help" not in sys.argv:
            _run_under_torchrun(sys.argv[1:2])
        else:
            app()
    except NaspipeError as error:
        cause = error.__cause__
        if error.exit_code == 1 and cause is not None and not isinstance(cause, NaspipeError):
            traceback.print_exception(cause)
        typer.echo(f"Error: {error}", err=True)
        raise SystemExit(error.exit_code) from None
