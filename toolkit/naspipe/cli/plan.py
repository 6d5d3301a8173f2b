"""``naspipe plan``: the schedule of a run, drawn and judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from naspipe.cli.output import say, show
from naspipe.pipeline.action import Kind
from naspipe.pipeline.plan import Plan
from naspipe.pipeline.plan_index import Violation
from naspipe.pipeline.planfile import read_plan, write_plan
from naspipe.pipeline.statistics import stage_statistics, versions_held
from naspipe.pipeline.validator import explain, find_violations, has_form
from naspipe.results.view import RunView

COLORS = ("blue", "green", "magenta", "cyan", "yellow", "red")
SHOWN = 10
"""Violations printed in full."""


def show_plan(
    plan: Plan,
    json_file: Path | None,
    html_file: Path | None,
    trace_file: Path | None,
    layer_bytes: Mapping[tuple[int, str], int] | None = None,
) -> bool:
    """Print grid, figures and verdict, and write the files; return whether the contract is kept."""
    console = Console()
    show(draw_grid(plan, console.width), console)
    violations = find_violations(plan)
    if has_form(violations):
        show_figures(plan, layer_bytes)
    show_verdict(plan, violations)
    if json_file is not None:
        write_plan(plan, json_file)
        say(f"Plan       {json_file}")
    if html_file is not None:
        from naspipe.report.timeline import write_timeline

        write_timeline(plan, html_file, violations)
        say(f"Timeline   {html_file}")
    if trace_file is not None:
        from naspipe.report.perfetto import write_trace

        write_trace(plan, trace_file)
        say(f"Trace      {trace_file}")
    return not violations


def draw_grid(plan: Plan, width: int) -> Text:
    """Return the plan as lines of text: stages as rows, time as columns, a colour per subnet.

    Args:
        plan: Any valid plan or trace.
        width: Columns of the console.
    """
    label = len(f"stage {plan.stages - 1} ")
    columns = max(10, width - label)
    scale = max(1, -(-plan.makespan // columns))
    grid = Text(f"One column is {scale} tick{'s' if scale > 1 else ''}; backwards are underlined.\n")
    for stage, row in enumerate(plan.actions):
        grid.append(f"stage {stage} ".rjust(label))
        column = 0
        for planned in row:
            if planned.action.kind is Kind.UPDATE:
                continue
            start, end = planned.start // scale, planned.end // scale
            if end <= column:
                continue  # Too short: another action has its column.
            start = max(start, column)
            grid.append("." * (start - column), style="dim")
            text = f"{planned.action.kind.letter}{planned.action.subnet}"
            if planned.action.microbatch:
                text += f".{planned.action.microbatch}"
            style = f"black on {COLORS[planned.action.subnet % len(COLORS)]}"
            if planned.action.kind is Kind.BACKWARD:
                style += " underline"
            grid.append(text[: end - start].ljust(end - start), style=style)
            column = end
        grid.append("\n")
    return grid


def show_figures(plan: Plan, layer_bytes: Mapping[tuple[int, str], int] | None) -> None:
    """Print the times, activations and versions of a plan; the memory of versions if the layers' sizes are known."""
    bound = "" if not plan.bound else f", {plan.makespan / plan.bound:.3f} times the bound {plan.bound:,}"
    distinct = len({tuple(map(tuple, subnet.layers)) for subnet in plan.subnets})
    say(f"Subnets    {len(plan.subnets):,}, {distinct:,} of them with different layers")
    say(f"Makespan   {plan.makespan:,} ticks{bound}")
    say(f"Bubble     {plan.bubble:.3f}")
    statistics = stage_statistics(plan)
    for title, values in (
        ("Busy", [f"{row.busy / plan.makespan:.2f}" if plan.makespan else "0" for row in statistics]),
        ("Activation", [str(row.activations) for row in statistics]),
        ("Versions", [str(row.versions) for row in statistics]),
        ("Moves", [str(row.moves) for row in statistics]),
    ):
        if title != "Moves" or any(row.moves for row in statistics):
            say(f"{title:<10} {_few(values)}{_UNITS[title]}")
    if layer_bytes is not None:
        megabytes = [f"{held / 2**20:.2f}" for held in versions_held(plan, layer_bytes)]
        say(f"Memory     {_few(megabytes)}  MiB of these versions, by stage")


_UNITS = {
    "Busy": "  fraction of the makespan, by stage",
    "Activation": "  blocks of units held at the peak, by stage",
    "Versions": "  layer versions held beyond one each at the peak, by stage",
    "Moves": "  blocks run off their home stage, by stage",
}


def _few(values: Sequence[str]) -> str:
    return " ".join(values) if len(values) <= 16 else f"{' '.join(values[:8])} ... {' '.join(values[-8:])}"


def show_verdict(plan: Plan, violations: Sequence[Violation]) -> None:
    """Print whether the plan keeps its contract, and its violations."""
    if not violations:
        say(f"Contract   {plan.contract}: kept")
        return
    say(f"Contract   {plan.contract}: broken, {len(violations)} violations")
    for violation in violations[:SHOWN]:
        say(explain(plan, violation))
    if len(violations) > SHOWN:
        say(f"... and {len(violations) - SHOWN} more")


def trace_summary(run: RunView) -> str:
    """Return a line on a run's trace: its bubble beside the planned one, and the verdict."""
    path = run.folder.training.trace
    trace = read_plan(path)
    planned = read_plan(run.folder.training.plan)
    violations = find_violations(trace)
    verdict = f"{trace.contract}: {'kept' if not violations else f'broken, {len(violations)} violations'}"
    return f"Trace       {path}; bubble {trace.bubble:.3f}, planned {planned.bubble:.3f}; {verdict}"
