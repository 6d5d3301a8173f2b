"""The timeline of a plan: a figure with a bar for each action, and its page."""

from __future__ import annotations

import html
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from naspipe.files import write_text
from naspipe.pipeline.action import Kind, PlannedAction
from naspipe.pipeline.plan import Plan
from naspipe.pipeline.plan_index import Violation
from naspipe.pipeline.statistics import stage_statistics
from naspipe.pipeline.validator import explain, has_form
from naspipe.pipeline.waits import CausalWait, causal_waits
from naspipe.report.canvas import INK, new_figure
from naspipe.report.markup import note, plot, problem, section, standalone_page, table
from naspipe.report.table import Table, number

MAX_ACTIONS = 10_000
"""Actions that are drawn; a browser takes about a second for them."""

MAX_VIOLATIONS = 20
"""Violations that a page lists."""

COLORS = (
    ("#5eead4", "#0f766e"), ("#fdba74", "#b45309"), ("#a5b4fc", "#4338ca"), ("#fda4af", "#be123c"),
    ("#bef264", "#4d7c0f"), ("#7dd3fc", "#0369a1"), ("#f0abfc", "#a21caf"), ("#cbd5e1", "#475569"),
)  # fmt: skip
"""Colours of subnets, forward and backward; they start again after the last."""

# Actions of a stage in the first view, and drawn actions up to which the bars name their units.
_FIRST_VIEW, _NAMED = 30, 4_000
# Half a bar's height, in rows; the arrows of causal waits take lanes above it.
_HALF, _LANE, _LANES = 0.28, 0.055, 3

# The factor by which a button widens the view, and the fraction of the view by which it moves it.
_BUTTONS = {
    "everything": "Infinity,0", "closer": "0.5,0", "wider": "2,0", "← earlier": "1,-0.5", "later →": "1,0.5",
}  # fmt: skip
_PAGE_STYLE = """
main { max-width: 1400px; }
.view { display: flex; flex-wrap: wrap; gap: 6px; margin: 8px 0 0; }
.view button { font: inherit; font-size: .9rem; padding: 4px 12px; cursor: pointer;
               border: 1px solid #cbd5e1; border-radius: 6px; background: #f8fafc; color: inherit; }
.view button:hover { background: #e2e8f0; }
"""
_SCRIPT = """<script>
const bar = document.querySelector(".view"), figure = document.getElementById("timeline");
// A finger that drags scrolls the page.
if (matchMedia("(pointer: coarse)").matches) Plotly.relayout(figure, {dragmode: false});
bar.addEventListener("click", event => {
  if (!event.target.dataset.view) return;
  const [scale, shift] = event.target.dataset.view.split(",").map(Number);
  const [from, to] = figure.layout.xaxis.range, end = Number(bar.dataset.end);
  const width = Math.min(Math.max((to - from) * scale, 4), end);
  const start = Math.max(0, Math.min((from + to - width) / 2 + shift * width, end - width));
  Plotly.relayout(figure, {"xaxis.range": [start, start + width]});
});
</script>"""


def timeline_figure(plan: Plan, max_actions: int = MAX_ACTIONS) -> Any:
    """Return a plotly figure of a plan: stages as rows, ticks from left to right, one bar per action.

    An update that takes no time is a mark. Arrows lead from the end of an update to the forward that it kept
    waiting. A plan with more than ``max_actions`` actions is drawn up to that many, and the axis says so.

    Args:
        plan: Any plan, or trace; it need not be valid.
        max_actions: Actions that are drawn at most, in the order of their start; at least 1.
    """
    drawn = list(itertools.islice(plan.in_time(), max_actions))
    total = sum(map(len, plan.actions))
    row = 46 if plan.stages <= 8 else 30
    axis = _tick(plan) if len(drawn) == total else f"{_tick(plan)} (the first {len(drawn):,} of {total:,} actions)"
    figure = new_figure(105 + row * plan.stages, axis, "stage")
    timed = [p for p in drawn if p.end > p.start or p.action.kind is not Kind.UPDATE]
    for name, kind in (("forward", Kind.FORWARD), ("backward", Kind.BACKWARD), ("update", Kind.UPDATE)):
        _add_bars(figure, name, [p for p in timed if p.action.kind is kind], len(drawn) <= _NAMED)
    _add_marks(figure, [p for p in drawn if p.end == p.start and p.action.kind is Kind.UPDATE], row)
    actions = {planned.action for planned in drawn}
    _add_waits(figure, [wait for wait in causal_waits(plan) if wait.forward.action in actions])
    end = max((planned.end for planned in drawn), default=0)
    shown = drawn[: _FIRST_VIEW * plan.stages]
    first = end if len(shown) == len(drawn) else shown[-1].start
    figure.update_xaxes(range=[0, max(first, 1)], tickformat=",d", minallowed=-0.02 * end)
    stages = list(range(plan.stages))
    figure.update_yaxes(range=[plan.stages - 0.5, -0.7], tickvals=stages, fixedrange=True, showgrid=False)
    figure.update_layout(
        dragmode="pan", barmode="overlay", hovermode="closest", meta=[len(drawn), end],
        uniformtext={"mode": "hide", "minsize": 9},
    )  # fmt: skip
    return figure


def write_timeline(plan: Plan, path: Path, violations: Sequence[Violation] = ()) -> None:
    """Write a self-contained page: a plan's figures, its violations, its stages and its timeline.

    Args:
        plan: Any plan, or trace.
        path: File to write.
        violations: Those that ``find_violations`` returns; none if the plan keeps its contract.
    """
    figure = timeline_figure(plan)
    drawn, end = figure.layout.meta
    total = sum(map(len, plan.actions))
    first = f"Only the first {drawn:,} of {total:,} actions are drawn, to tick {end:,} of {plan.makespan:,}."
    caption = (
        "Actions of each stage, in a colour for each subnet: light forwards, dark backwards, and a line "
        "where an update is done. An arrow leads from the end of an update to a forward that it kept "
        "waiting, although its input was there. Click an entry of the legend to hide its bars."
    )
    buttons = "".join(f'<button type="button" data-view="{view}">{text}</button>' for text, view in _BUTTONS.items())
    body = [
        section("Plan", _figures(plan, violations), *_wrong(plan, violations)),
        section("Stages", _stages(plan, violations)),
        section(
            "Timeline", note(first) if drawn < total else "",
            f'<div class="view" data-end="{max(end, 1)}">{buttons}</div>',
            plot(figure, "timeline", caption),
        ),
    ]  # fmt: skip
    stages = f"{plan.stages} stage{'s' if plan.stages > 1 else ''}"
    title = f"NASPipe plan: {plan.executor or 'unknown executor'} on {stages}"
    write_text(path, standalone_page(title, [*body, _SCRIPT], _PAGE_STYLE))


# The figure


def _tick(plan: Plan) -> str:
    """Return the unit of a plan's times: a trace, which has versions, has measured ones."""
    return "tick" if plan.versions is None else "microsecond"


def _add_bars(figure: Any, name: str, bars: Sequence[PlannedAction], named: bool) -> None:
    if not bars:
        return
    shade = 0 if name == "forward" else 1
    colors = [INK if name == "update" else _color(planned, shade) for planned in bars]
    texts = [_unit(planned) for planned in bars] if named and name != "update" else None
    figure.add_bar(
        x=[p.end - p.start for p in bars], base=[p.start for p in bars], y=[p.action.stage for p in bars],
        orientation="h", width=2 * _HALF, name=name, legendgroup=name, text=texts, textposition="inside",
        insidetextanchor="middle", textangle=0,
        insidetextfont={"size": 11, "color": "#fff" if shade else INK},
        marker={"color": colors, "line": {"width": 0.5, "color": "#fff"}},
        hovertext=[_hover(p) for p in bars], hovertemplate="%{hovertext}<extra></extra>",
    )  # fmt: skip


def _add_marks(figure: Any, marks: Sequence[PlannedAction], row: int) -> None:
    """Draw updates that take no time as lines a little higher than a bar."""
    if not marks:
        return
    figure.add_scatter(
        x=[p.start for p in marks], y=[p.action.stage for p in marks], mode="markers", name="update",
        legendgroup="update", showlegend=all(trace.name != "update" for trace in figure.data),
        marker={
            "symbol": "line-ns", "size": (2 * _HALF * row + 8) / 1.4,
            "line": {"width": 2, "color": [_color(p, 1) for p in marks]},
        },
        hovertext=[_hover(p) for p in marks], hovertemplate="%{hovertext}<extra></extra>",
    )  # fmt: skip


def _add_waits(figure: Any, waits: Sequence[CausalWait]) -> None:
    """Draw all arrows as two traces: one of lines, one of heads."""
    if not waits:
        return
    lines_x: list[float | None] = []
    lines_y: list[float | None] = []
    lanes: dict[int, list[int]] = {}
    for wait in waits:
        start, end = wait.update.end, wait.forward.start
        source, target = wait.update.action.stage, wait.forward.action.stage
        if source == target:
            free = lanes.setdefault(target, [-1] * _LANES)
            lane = next((lane for lane in range(_LANES) if free[lane] < start), free.index(min(free)))
            free[lane] = max(free[lane], end)
            top = target - _HALF - _LANE * (lane + 1.2)
            lines_x += [start, start, end, end, None]
            lines_y += [target - _HALF, top, top, target - _HALF, None]
        else:
            lines_x += [start, end, end, None]
            edge = source + (-_HALF if source > target else _HALF)
            lines_y += [edge, target - _HALF - _LANE, target - _HALF, None]
    figure.add_scatter(
        x=lines_x, y=lines_y, mode="lines", name="causal wait", legendgroup="wait", hoverinfo="skip",
        line={"width": 1.2, "color": INK},
    )  # fmt: skip
    figure.add_scatter(
        x=[w.forward.start for w in waits], y=[w.forward.action.stage - _HALF - 0.03 for w in waits],
        mode="markers", name="causal wait", legendgroup="wait", showlegend=False,
        marker={"symbol": "triangle-down", "size": 8, "color": INK},
        hovertext=[f"{w.forward.action} waited for {w.update.action}, until {w.update.end:,}" for w in waits],
        hovertemplate="%{hovertext}<extra></extra>",
    )  # fmt: skip


def _color(planned: PlannedAction, shade: int) -> str:
    return COLORS[planned.action.subnet % len(COLORS)][shade]


def _unit(planned: PlannedAction) -> str:
    """Return a unit's text as an action's text spells it."""
    action = planned.action
    return f"{action.subnet}.{action.microbatch}" if action.microbatch else str(action.subnet)


def _hover(planned: PlannedAction) -> str:
    action, last = planned.action, planned.end_block - 1
    unit = f"subnet {action.subnet}"
    if action.kind is not Kind.UPDATE:
        unit += f", micro-batch {action.microbatch}"
    blocks = f"block {last}" if planned.first_block == last else f"blocks {planned.first_block} to {last}"
    message = "" if planned.message is None else f"<br>message {planned.message:,}"
    return (
        f"<b>{action}</b>: {action.kind.name.lower()} of {unit}<br>{blocks}, "
        f"ticks {planned.start:,} to {planned.end:,}{message}"
    )


# The page


def _figures(plan: Plan, violations: Sequence[Violation]) -> str:
    verdict = "broken" if violations else "kept"
    ratio = f"{plan.makespan / plan.bound:.3f}" if plan.bound else "unknown"
    bound = "unknown" if plan.bound is None else plan.bound
    cells: list[tuple[object, str]] = [
        (plan.contract, "contract"), (verdict, "verdict"), (plan.executor or "unknown", "executor"),
        (plan.stages, "stages"), (plan.segments, "segments"), (plan.microbatches, "micro-batches"),
        ("none" if plan.delay is None else plan.delay, "delay"), (len(plan.subnets), "subnets"),
        (plan.makespan, f"makespan, {_tick(plan)}s"), (bound, "bound, ticks"), (ratio, "makespan / bound"),
        (f"{plan.bubble:.3f}", "bubble"),
    ]  # fmt: skip
    texts = [f"<div><b>{html.escape(number(value))}</b><span>{name}</span></div>" for value, name in cells]
    return f'<div class="figures">{"".join(texts)}</div>'


def _wrong(plan: Plan, violations: Sequence[Violation]) -> list[str]:
    if not violations:
        return [note(f"The plan keeps its contract, {plan.contract}: every read and update is in order.")]
    text = "\n".join(explain(plan, violation) for violation in violations[:MAX_VIOLATIONS])
    shown = f", of which the first {MAX_VIOLATIONS} are" if len(violations) > MAX_VIOLATIONS else ""
    head = f"Violations of the plan's rules: {len(violations):,}{shown}:"
    return [problem(head), f"<pre>{html.escape(text)}</pre>"]


def _stages(plan: Plan, violations: Sequence[Violation]) -> str:
    """Return the table of stages; of a malformed plan only the columns that need a single stage's actions."""
    head = ["stage", "blocks", "actions", f"busy, {_tick(plan)}s", "idle"]
    rows: list[list[object]] = []
    for stage, row in enumerate(plan.actions):
        idle = f"{plan.idle(stage):.3f}" if plan.makespan else "-"
        rows.append([stage, _blocks(row), len(row), plan.busy(stage), idle])
    caption = "What each stage does: its time at work and the fraction of the makespan that it is idle"
    if has_form(violations):
        head += ["activations", "more versions", "moves"]
        for line, held in zip(rows, stage_statistics(plan), strict=True):
            line += [held.activations, held.versions, held.moves]
        caption += (
            "; at the peak, the blocks whose activations it holds and the layer versions beyond one each; "
            "and the blocks of subnets that do not run where most subnets run them"
        )
    return table(Table(head, rows, f"{caption}."))


def _blocks(row: Sequence[PlannedAction]) -> str:
    """Return the blocks that a stage runs, segment by segment."""
    runs = sorted({(p.action.segment, p.first_block, p.end_block - 1) for p in row})
    if len(runs) > len({segment for segment, _, _ in runs}):
        return f"vary within {min(run[1] for run in runs)} to {max(run[2] for run in runs)}"
    # Spaces that do not break keep a telephone from wrapping the numbers.
    texts = [f"{first}\u00a0to\u00a0{last}" if first < last else str(first) for _, first, last in runs]
    return ", ".join(texts) or "-"
