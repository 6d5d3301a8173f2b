"""The commands about schedules: planned, simulated, verified and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from naspipe.cli.arguments import ConfigArgument, SetOption

# Everything else is imported within the commands, so that --help is quick.


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
    from naspipe.cli.plan import show_plan
    from naspipe.pipeline.planfile import read_plan

    sizes = None
    if config.suffix == ".json":
        found = read_plan(config)
    else:
        from naspipe.preflight.layout import warn_of_idle_stages
        from naspipe.training.context import RunContext
        from naspipe.training.profiling import measure_costs

        more = [] if stages is None else [f"executor.stages={stages}"]
        context = RunContext.load(config, [*(overrides or []), *more])
        measure_costs(context)
        planning = context.planning
        found, sizes = planning.plan(subnets), planning.layer_bytes()
        warn_of_idle_stages(planning)
    if not show_plan(found, json_file, html_file, trace_file, sizes):
        raise typer.Exit(1)


def verify(
    config: ConfigArgument,
    executors: Annotated[str, typer.Option(help="Executors; options as in gpipe:bulk=4.")] = "sequential,csp",
    stages: Annotated[str, typer.Option(help="Numbers of stages.")] = "1,2,4",
    transport: Annotated[str, typer.Option(help="in-process, distributed, or both.")] = "in-process",
    subnets: Annotated[int, typer.Option(min=1, help="Subnets that each trains.")] = 50,
    resume: Annotated[
        bool, typer.Option("--resume", help="Break each off at three checkpoints, and go on under another.")
    ] = False,
    overrides: SetOption = None,
) -> None:
    """Train the same subnets under several executors and compare every layer and loss, bit for bit."""
    from naspipe.cli.simulate import count, one_of, parse_list
    from naspipe.cli.verify import show_resume_verification, show_verification
    from naspipe.training.context import RunContext

    chosen = parse_list(executors, "--executors", str)
    counts = parse_list(stages, "--stages", count("--stages"))
    transports = parse_list(transport, "--transport", one_of("--transport", ("in-process", "distributed")))
    show = show_resume_verification if resume else show_verification
    if not show(RunContext.load(config, overrides or []), chosen, counts, transports, subnets):
        raise typer.Exit(1)


def compare(
    config: ConfigArgument,
    executors: Annotated[str, typer.Option(help="Executors; options as in gpipe:bulk=4.")] = "csp,gpipe,pipedream",
    stages: Annotated[str, typer.Option(help="Numbers of stages.")] = "1,2",
    samplers: Annotated[str | None, typer.Option(help="Samplers.  [default: the configuration's]")] = None,
    transport: Annotated[str, typer.Option(help="in-process or distributed.")] = "distributed",
    subnets: Annotated[int, typer.Option(min=1, help="Subnets that each trains.")] = 50,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Write a row per training.")] = None,
    html_file: Annotated[Path | None, typer.Option("--html", help="Write a figure.")] = None,
    overrides: SetOption = None,
) -> None:
    """Measure executors, samplers and stage counts on one training."""
    from naspipe.cli.compare import show_comparison
    from naspipe.cli.simulate import count, one_of, parse_list
    from naspipe.training.context import RunContext
    from naspipe.verification.comparison import Comparison

    comparison = Comparison(
        RunContext.load(config, overrides or []),
        parse_list(executors, "--executors", str),
        [] if samplers is None else parse_list(samplers, "--samplers", str),
        parse_list(stages, "--stages", count("--stages")),
        one_of("--transport", ("in-process", "distributed"))(transport),
        subnets,
    )
    show_comparison(comparison, csv_file, html_file)


def simulate(
    space: Annotated[str, typer.Option(help="Abstract spaces: BLOCKSxOPTIONS or presets.")] = "nlp.c0",
    executors: Annotated[str, typer.Option(help="Executors; options as in gpipe:bulk=4.")] = "csp",
    samplers: Annotated[str, typer.Option(help="Samplers.")] = "uniform",
    stages: Annotated[str, typer.Option(help="Numbers of stages.")] = "8",
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
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Write a row per simulation.")] = None,
    html_file: Annotated[Path | None, typer.Option("--html", help="Write a figure.")] = None,
) -> None:
    """Compare executors and samplers on abstract spaces; every option takes a list, as in 4,8,16."""
    from naspipe.cli.simulate import count, parse_list, show_simulation
    from naspipe.pipeline.simulation import Simulation

    simulation = Simulation(
        spaces=parse_list(space, "--space", str),
        executors=parse_list(executors, "--executors", str),
        samplers=parse_list(samplers, "--samplers", str),
        stages=parse_list(stages, "--stages", count("--stages")),
        microbatches=parse_list(microbatches, "--microbatches", count("--microbatches")),
        segments=parse_list(segments, "--segments", count("--segments")),
        delays=[None] if delay is None else parse_list(delay, "--delay", count("--delay", 0)),
        seeds=seeds,
        subnets=subnets,
        distance=distance,
        window=window,
    )
    show_simulation(simulation, csv_file, html_file)


COMMANDS = (plan, verify, compare, simulate)
"""In the order in which ``--help`` lists them."""
