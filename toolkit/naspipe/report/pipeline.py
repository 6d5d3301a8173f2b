"""The report's section on a traced training: the planned pipeline beside the measured one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from naspipe.pipeline.plan import Plan
from naspipe.pipeline.planfile import read_plan
from naspipe.pipeline.validator import find_violations
from naspipe.report.markup import note, plot, problem, table
from naspipe.report.table import Table
from naspipe.report.timeline import timeline_figure

if TYPE_CHECKING:
    from naspipe.results.view import RunView

STRETCH = 40
"""Actions of each stage that are drawn."""

MAX_STAGES = 16
"""Stages that the table lists."""


def pipeline(run: RunView) -> Iterator[str]:
    """Yield planned and measured bubble, makespan and idle time, and the timelines, of a traced training."""
    if not run.folder.training.trace.exists():
        return
    measured = read_plan(run.folder.training.trace)
    planned = read_plan(run.folder.training.plan)
    stages = f"{measured.stages} stage{'s' if measured.stages > 1 else ''}"
    yield note(
        f"Executor {measured.executor} on {stages}, {run.config.executor.transport}; {len(measured.subnets):,} "
        f"subnets, {measured.microbatches} micro-batch{'es' if measured.microbatches > 1 else ''} each."
    )
    violations = find_violations(measured)
    if violations:
        yield problem(f"The trace breaks its contract, {measured.contract}: {violations[0].message}")
    else:
        yield note(f"The trace keeps its contract, {measured.contract}: every layer was read at the version due.")
    if run.config.executor.transport == "in-process" and measured.stages > 1:
        yield note("All stages ran in one process, one at a time: the measured bubble is not that of a pipeline.")
    yield table(_table(planned, measured))
    for plan, name, how in ((planned, "planned", "as planned"), (measured, "measured", "as measured")):
        caption = f"The beginning of the training {how}: a colour for each subnet, light forwards, dark backwards."
        yield plot(timeline_figure(plan, STRETCH * plan.stages), f"timeline-{name}", caption)
    trace = run.folder.training.trace.relative_to(run.path)
    yield note(f"For the whole timeline, run in the run's folder: naspipe plan {trace} --html FILE")


def _table(planned: Plan, measured: Plan) -> Table:
    rows = [
        ("bubble", f"{planned.bubble:.3f}", f"{measured.bubble:.3f}"),
        ("makespan", f"{planned.makespan:,} ticks", f"{measured.makespan / 1e6:,.2f} s"),
    ]
    for stage in range(min(planned.stages, MAX_STAGES)):
        rows.append((f"stage {stage} idle", _idle(planned, stage), _idle(measured, stage)))
    return Table(("", "planned", "measured"), rows, "The pipeline as planned and as measured.")


def _idle(plan: Plan, stage: int) -> str:
    return f"{plan.idle(stage):.3f}" if plan.makespan else "-"
