"""The commands that check a configuration, and those about schedules: planned, verified, compared and simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from naspipe.cli.arguments import (
    ConfigArgument,
    CsvOption,
    ExecutorsOption,
    FigureOption,
    SetOption,
    StagesOption,
    one_of,
    parse_counts,
    parse_list,
)

# Everything else is imported within the commands, so that --help is quick, and after their first line.

TRANSPORTS = ("in-process", "distributed")


def validate(config: ConfigArgument, overrides: SetOption = None) -> None:
    """Check a configuration and print the run that it describes; trains nothing."""
    from naspipe.cli.output import announce

    announce("Checking", config, data=True)
    from naspipe.cli.validate import show_validation
    from naspipe.training.context import RunContext

    show_validation(RunContext.load(config, overrides or []))


def plan(
    config: Annotated[Path, typer.Argument(metavar="CONFIG|PLAN", help="A run's YAML, or a plan's JSON.")],
    stages: Annotated[int | None, typer.Option(min=1, help="Pipeline stages.")] = None,
    subnets: Annotated[int, typer.Option(min=1, help="Subnets to plan.")] = 32,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the plan.")] = None,
    html_file: Annotated[Path | None, typer.Option("--html", help="Write an interactive timeline.")] = None,
    trace_file: Annotated[Path | None, typer.Option("--trace", help="Write a trace for Perfetto.")] = None,
    overrides: SetOption = None,
) -> None:
    """Print the schedule of a run and whether it keeps its contract; trains nothing."""
    from naspipe.cli.output import announce, watching

    announce("Checking", config, data=True)
    from naspipe.cli.plan import show_plan
    from naspipe.pipeline.planfile import read_plan

    sizes = None
    if config.suffix == ".json":
        found = read_plan(config)
    else:
        from naspipe.preflight.layout import planning_without_profile, warn_of_idle_stages
        from naspipe.training.context import RunContext
        from naspipe.training.profiling import measure_costs

        more = [] if stages is None else [f"executor.stages={stages}"]
        context = RunContext.load(config, [*(overrides or []), *more])
        with watching(data=True) as watch:
            measure_costs(context, watch=watch)
            planning = planning_without_profile(context, watch)
            found, sizes = planning.plan(subnets), planning.layer_bytes()
            warn_of_idle_stages(planning)
    if not show_plan(found, json_file, html_file, trace_file, sizes):
        raise typer.Exit(1)


def verify(
    config: ConfigArgument,
    executors: ExecutorsOption = "sequential,csp",
    stages: StagesOption = "1,2,4",
    transport: Annotated[str, typer.Option(help="in-process, distributed, or both.")] = "in-process",
    subnets: Annotated[int, typer.Option(min=1, help="Subnets that each trains.")] = 50,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Interrupt each at three checkpoints, and resume it under another executor."),
    ] = False,
    overrides: SetOption = None,
) -> None:
    """Train the same subnets under several executors and compare every layer and loss, bit for bit."""
    from naspipe.cli.output import announce

    chosen = parse_list(executors, "--executors", str)
    counts = parse_counts(stages, "--stages")
    transports = parse_list(transport, "--transport", one_of("--transport", TRANSPORTS))
    announce("Checking", config, data=True)
    from naspipe.cli.verify import show_resume_verification, show_verification
    from naspipe.training.context import RunContext

    show = show_resume_verification if resume else show_verification
    if not show(RunContext.load(config, overrides or []), chosen, counts, transports, subnets):
        raise typer.Exit(1)


def compare(
    config: ConfigArgument,
    executors: ExecutorsOption = "csp,gpipe,pipedream",
    stages: StagesOption = "1,2",
    samplers: Annotated[str | None, typer.Option(help="Samplers.  [default: the configuration's]")] = None,
    transport: Annotated[str, typer.Option(help="in-process or distributed.")] = "distributed",
    subnets: Annotated[int, typer.Option(min=1, help="Subnets that each trains.")] = 50,
    csv_file: CsvOption = None,
    html_file: FigureOption = None,
    overrides: SetOption = None,
) -> None:
    """Measure executors, samplers and stage counts on one training."""
    from naspipe.cli.output import announce

    chosen = parse_list(executors, "--executors", str)
    drawn = [] if samplers is None else parse_list(samplers, "--samplers", str)
    counts = parse_counts(stages, "--stages")
    carried = one_of("--transport", TRANSPORTS)(transport)
    announce("Checking", config, data=True)
    from naspipe.cli.measurements import show_comparison
    from naspipe.training.context import RunContext
    from naspipe.verification.comparison import Comparison

    context = RunContext.load(config, overrides or [])
    show_comparison(Comparison(context, chosen, drawn, counts, carried, subnets), csv_file, html_file)


def simulate(
    space: Annotated[str, typer.Option(help="Abstract spaces: BLOCKSxOPTIONS or presets.")] = "nlp.c0",
    executors: ExecutorsOption = "csp",
    samplers: Annotated[str, typer.Option(help="Samplers.")] = "uniform",
    stages: StagesOption = "8",
    microbatches: Annotated[str, typer.Option(help="Numbers of micro-batches.")] = "1",
    segments: Annotated[str, typer.Option(help="Numbers of segments of a stage.")] = "1",
    delay: Annotated[
        str | None, typer.Option(help="Give both ends an always-active layer, read this many updates late.")
    ] = None,
    distance: Annotated[
        int | None, typer.Option(min=0, help="Of spaced.  [default: ceil(stages / micro-batches)]")
    ] = None,
    window: Annotated[int | None, typer.Option(min=1, help="Subnets in flight at most.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds, from 0 on.")] = 10,
    subnets: Annotated[int, typer.Option(min=1, help="Subnets of each simulation.")] = 600,
    csv_file: CsvOption = None,
    html_file: FigureOption = None,
) -> None:
    """Compare executors and samplers on abstract spaces; every option takes a list, as in 4,8,16."""
    from naspipe.cli.measurements import show_simulation
    from naspipe.pipeline.simulation import Simulation

    simulation = Simulation(
        spaces=parse_list(space, "--space", str),
        executors=parse_list(executors, "--executors", str),
        samplers=parse_list(samplers, "--samplers", str),
        stages=parse_counts(stages, "--stages"),
        microbatches=parse_counts(microbatches, "--microbatches"),
        segments=parse_counts(segments, "--segments"),
        delays=[None] if delay is None else parse_counts(delay, "--delay", 0),
        seeds=seeds,
        subnets=subnets,
        distance=distance,
        window=window,
    )
    show_simulation(simulation, csv_file, html_file)
