"""The commands that make a run's folder, or work in one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from naspipe.cli.arguments import ConfigArgument, OutOption, RunArgument, SetOption, TraceOption

# Everything else is imported within the commands, so that --help is quick, and after their first line.


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
    from naspipe.cli.output import announce, say, watching

    path = config if config is not None else default_config()
    announce("Checking", path)
    from naspipe.cli.result import show_result
    from naspipe.runs.run import Run
    from naspipe.training.context import RunContext

    context = RunContext.load(path, overrides or [])
    with watching() as watch:
        new = Run.create(context, out, watch)
        say(f"Run folder: {new.path}")
        new.train(trace).search().retrain().report()
    show_result(new)


def train(
    config: ConfigArgument, out: OutOption = None, trace: TraceOption = False, overrides: SetOption = None
) -> None:
    """Train a supernet in a new run folder."""
    from naspipe.cli.output import announce, say, watching

    announce("Checking", config)
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


def resume(
    run_folder: RunArgument,
    fork: Annotated[
        Path | None,
        typer.Option("--fork", metavar="NEW_RUN", help="Resume in a copy, in which any setting may differ."),
    ] = None,
    overrides: SetOption = None,
) -> None:
    """Resume an interrupted run in whatever phase it was; its result is that of a run without the interrupt."""
    from naspipe.cli.output import announce, say, watching

    announce("Opening", run_folder)
    from naspipe.cli.result import show_result
    from naspipe.runs.resuming import reopen

    with watching() as watch:
        opened = reopen(run_folder, overrides or [], fork, watch)
        say(f"Run folder: {opened.path}")
        if opened.folder.best_metrics.exists():
            say("The run has finished already; only its report is written anew.")
        opened.resume()
    show_result(opened)


def search(
    run_folder: RunArgument,
    extend: Annotated[int | None, typer.Option(min=1, help="Trials to add to the budget.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that evaluate.  [default: as configured]")
    ] = None,
) -> None:
    """Search the trained supernet of a run, or resume an interrupted search."""
    from naspipe.cli.output import announce, say, watching

    announce("Opening", run_folder)
    from naspipe.report.table import metrics_text
    from naspipe.runs.run import Run

    with watching() as watch:
        opened = Run.open(run_folder, watch).search(extend, workers)
    best = opened.folder.best_trial()
    say(f"Best architecture  {best.text}")
    say(f"Supernet scores    {metrics_text(best.metrics)}")
    if best.note:
        say(f"Note               {best.note}")
    say(f"Next               naspipe retrain {opened.folder.quoted}")


def retrain(run_folder: RunArgument) -> None:
    """Retrain the best architecture of a run, save it and test it."""
    from naspipe.cli.output import announce, watching

    announce("Opening", run_folder)
    from naspipe.cli.result import show_result
    from naspipe.runs.run import Run

    with watching() as watch:
        opened = Run.open(run_folder, watch).retrain()
        opened.report()
    show_result(opened)


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
    """Compare the supernet's order of random architectures with the true one, or resume an interrupted check."""
    from naspipe.cli.output import announce, say, watching

    announce("Opening", run_folder)
    from naspipe.cli.result import show_ranking
    from naspipe.runs.run import Run

    with watching() as watch:
        opened = Run.open(run_folder, watch)
        record = opened.rank_check(against, architectures, seeds)
        opened.report()
    show_ranking(record)
    say(f"Report    {opened.folder.report}")


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
    from naspipe.cli.output import announce, say

    announce("Opening", run_folder, data=True)
    from naspipe.runs.export import export_model
    from naspipe.runs.run import Run

    exported = export_model(Run.open(run_folder), form, out, architecture)
    say(f"Architecture  {exported.text}")
    say(f"Weights       {exported.weights}")
    say(f"Model         {exported.path}")
    say(f"Description   {exported.description}")
    say(f"Batch         {'of any size' if exported.batch is None else f'of {exported.batch} samples only'}")
    say(f"To load it    python -c {exported.quoted_load}")


def report(
    run_folder: RunArgument,
    best: Annotated[int | None, typer.Option(min=1, help="Print this many of the best architectures.")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION", help="Print those whose metrics satisfy it, as in 'parameters<1e6'; may be repeated."
        ),
    ] = None,
    pick: Annotated[
        str | None, typer.Option(metavar="knee|OBJECTIVE", help="Print the Pareto front's knee, or the best in one.")
    ] = None,
) -> None:
    """Write report.html on a run, finished or not, or print some of its architectures."""
    from naspipe.cli.output import announce, say

    announce("Opening", run_folder, data=True)
    from naspipe.runs.run import Run

    opened = Run.open(run_folder)
    if best is None and not where and pick is None:
        say(f"Report  {opened.report()}")
        return
    from naspipe.cli.selection import show_selection

    show_selection(opened, best, where or [], pick)


def default_config() -> Path:
    """Return the path of the example that comes with the package."""
    return Path(__file__).resolve().parent.parent / "examples" / "digits.yaml"
