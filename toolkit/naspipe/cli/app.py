"""The commands of ``naspipe``."""

from __future__ import annotations

import sys
import traceback
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from naspipe.cli import schedule_commands
from naspipe.cli.arguments import ConfigArgument, OutOption, RunArgument, SetOption, TraceOption
from naspipe.cli.plugin_commands import plugins
from naspipe.environment import is_follower, torchrun_processes
from naspipe.errors import InputError, NaspipeError, NaspipeWarning

# Everything else is imported within the commands, so that --help is quick.

app = typer.Typer(
    name="naspipe",
    help="Neural architecture search with reproducible supernet training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.command()
def run(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG]", help="A run's YAML file.  [default: the digits example]"),
    ] = None,
    out: OutOption = None,
    trace: TraceOption = False,
    overrides: SetOption = None,
) -> None:
    """Train, search, retrain the best subnet and write the report."""
    from naspipe.cli.output import say, watching
    from naspipe.cli.result import show_result
    from naspipe.runs.run import Run
    from naspipe.training.context import RunContext

    path = config if config is not None else default_config()
    context = RunContext.load(path, overrides or [])
    with watching() as watch:
        new = Run.create(context, out, watch)
        say(f"Run folder: {new.path}")
        new.train(trace).search().retrain().report()
    show_result(new)


@app.command()
def train(
    config: ConfigArgument, out: OutOption = None, trace: TraceOption = False, overrides: SetOption = None
) -> None:
    """Train a supernet in a new run folder."""
    from naspipe.cli.output import say, watching
    from naspipe.runs.run import Run
    from naspipe.training.context import RunContext

    context = RunContext.load(config, overrides or [])
    with watching() as watch:
        new = Run.create(context, out, watch)
        say(f"Run folder: {new.path}")
        new.train(trace)
    say(f"Supernet    {new.folder.supernet}")
    say(f"Digest      {new.digest}")
    if trace:
        from naspipe.cli.plan import trace_summary

        say(trace_summary(new))
    say(f"Next        naspipe search {new.folder.quoted}")


@app.command()
def resume(
    run_folder: RunArgument,
    fork: Annotated[
        Path | None, typer.Option("--fork", metavar="NEW_RUN", help="Go on in a copy, in which anything may differ.")
    ] = None,
    overrides: SetOption = None,
) -> None:
    """Go on where a run was broken off, in whatever phase, with the result that it would have had."""
    from naspipe.cli.output import say, watching
    from naspipe.cli.result import show_result
    from naspipe.runs.resuming import reopen

    with watching() as watch:
        opened = reopen(run_folder, overrides or [], fork, watch)
        say(f"Run folder: {opened.path}")
        if opened.folder.best_metrics.exists():
            say("The run has finished already; only its report is written anew.")
        opened.resume()
    show_result(opened)


@app.command()
def search(
    run_folder: RunArgument,
    extend: Annotated[int | None, typer.Option(min=1, help="Trials to add to the budget.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that evaluate.  [default: as configured]")
    ] = None,
) -> None:
    """Search the trained supernet of a run; a search that was broken off goes on."""
    from naspipe.cli.output import say, watching
    from naspipe.files import read_json
    from naspipe.runs.run import Run

    with watching() as watch:
        opened = Run.open(run_folder, watch).search(extend, workers)
    best = read_json(opened.folder.best_architecture)
    say(f"Best architecture  {best['text']}")
    say(f"Supernet scores    {_scores(best['metrics'])}")
    if best.get("note"):
        say(f"Note               {best['note']}")
    say(f"Next               naspipe retrain {opened.folder.quoted}")


@app.command()
def retrain(run_folder: RunArgument) -> None:
    """Retrain the best architecture of a run, save it and test it."""
    from naspipe.cli.output import watching
    from naspipe.cli.result import show_result
    from naspipe.runs.run import Run

    with watching() as watch:
        opened = Run.open(run_folder, watch).retrain()
        opened.report()
    show_result(opened)


@app.command("rank-check")
def rank_check(
    run_folder: RunArgument,
    against: Annotated[
        str, typer.Option(metavar="TRUTH", help="retrain, or an objective that is a table, such as nasbench201.")
    ] = "retrain",
    architectures: Annotated[
        int | None, typer.Option(help="Architectures to check.  [default: 20 for retrain, else 100]")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Trainings of each, whose mean is the truth.")] = 1,
) -> None:
    """Compare the supernet's order of random architectures with the true one; a check that was broken off goes on."""
    from naspipe.cli.output import say, watching
    from naspipe.cli.rank_check import show_ranking
    from naspipe.runs.run import Run

    with watching() as watch:
        opened = Run.open(run_folder, watch)
        record = opened.rank_check(against, architectures, seeds)
        opened.report()
    show_ranking(record)
    say(f"Report    {opened.folder.report}")


@app.command()
def export(
    run_folder: RunArgument,
    form: Annotated[str, typer.Option("--format", metavar="FORMAT", help="state_dict or torch.export.")] = "state_dict",
    out: Annotated[
        Path | None, typer.Option("--out", help="The file, which must not exist.  [default: below RUN/export]")
    ] = None,
    architecture: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="A subnet with the supernet's weights.  [default: the retrained best one]"),
    ] = None,
) -> None:
    """Write the retrained best model of a run to a file, and read it back to compare every bit."""
    from naspipe.cli.output import say
    from naspipe.runs.export import export_model
    from naspipe.runs.run import Run

    exported = export_model(Run.open(run_folder), form, out, architecture)
    say(f"Architecture  {exported.text}")
    say(f"Weights       {exported.weights}")
    say(f"Model         {exported.path}")
    say(f"Description   {exported.description}")
    say(f"Batch         {'of any size' if exported.batch is None else f'of {exported.batch} samples only'}")
    say(f"To load it    python -c {exported.quoted_load}")


@app.command()
def report(
    run_folder: RunArgument,
    best: Annotated[int | None, typer.Option(min=1, help="Print this many of the best architectures.")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="CONDITION", help="Print those of such metrics, as in 'parameters<1e6'; may be repeated."),
    ] = None,
    pick: Annotated[
        str | None, typer.Option(metavar="knee|OBJECTIVE", help="Print the Pareto front's knee, or the best in one.")
    ] = None,
) -> None:
    """Write report.html from what a run has so far, or print the architectures that are asked for."""
    from naspipe.cli.output import say
    from naspipe.runs.run import Run

    opened = Run.open(run_folder)
    if best is None and not where and pick is None:
        say(f"Report  {opened.report()}")
        return
    from naspipe.cli.selection import show_selection

    show_selection(opened, best, where or [], pick)


@app.command()
def validate(config: ConfigArgument, overrides: SetOption = None) -> None:
    """Check a configuration and print what it would run; trains nothing."""
    from naspipe.cli.validate import show_validation
    from naspipe.training.context import RunContext

    show_validation(RunContext.load(config, overrides or []))


for command in schedule_commands.COMMANDS:
    app.command()(command)
app.add_typer(plugins, name="plugins")


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


def _run_under_torchrun(command: list[str]) -> None:
    """Run the command in the process of torchrun's that leads; the others train their stages for it.

    Raises:
        InputError: The command is not for several processes.
        TrainingError: The training of this process's stage failed, or that of the one that leads.
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
