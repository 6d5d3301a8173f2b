"""Draw docs/pipeline.svg from a plan: python benchmarks/pipeline_picture.py. It measures nothing and takes a second.

The plan is that of csp for six subnets on four stages: an abstract space of 4 blocks with 4 options each, drawn
uniformly; a forward takes one tick, a backward two, an update none.
"""

from __future__ import annotations

from pathlib import Path

from naspipe.executors.csp import CSP
from naspipe.pipeline.abstract import AbstractSpace
from naspipe.pipeline.action import Kind, PlannedAction
from naspipe.pipeline.plan import Plan
from naspipe.pipeline.scenario import Layout, Scenario
from naspipe.pipeline.waits import causal_waits
from naspipe_strategies.uniform import UniformSampler

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "pipeline.svg"
STAGES, SUBNETS, SEED = 4, 6, 60
COLORS = (
    ("#bfdbfe", "#1d4ed8"), ("#fed7aa", "#c2410c"), ("#bbf7d0", "#15803d"),
    ("#e9d5ff", "#7e22ce"), ("#fecdd3", "#be123c"), ("#cffafe", "#0e7490"),
)  # fmt: skip
"""Light for the forward and dark for the backward of each subnet."""
TICK, ROW, GAP, LEFT, TOP = 25, 30, 22, 74, 58
INK, FAINT = "#111827", "#374151"
FONT = "-apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="6.5" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    f'<path d="M0,0.5 L7.5,4 L0,7.5 z" fill="{INK}"/></marker></defs>'
)
LEGEND = (
    f"F: forward (light). B: backward and update (dark). The number is the subnet, 0 to {SUBNETS - 1}; grey is idle "
    "time.",
    "An arrow: this forward waited for an earlier subnet's update of a layer that both subnets use.",
)


def make_plan() -> Plan:
    """Return the plan that is drawn."""
    space = AbstractSpace(STAGES, 4)
    scenario = Scenario(lambda: space.subnets(UniformSampler, SEED), SUBNETS, 1, None, ())
    return scenario.plan(CSP(), Layout(STAGES), "csp")


def x(tick: float) -> float:
    """Return where a tick lies."""
    return LEFT + tick * TICK


def y(stage: int) -> int:
    """Return where a stage's row begins."""
    return TOP + stage * (ROW + GAP)


def text(left: float, top: float, content: str, **style: object) -> str:
    """Return a text."""
    styles = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in {"fill": FAINT, **style}.items())
    return f'<text x="{left}" y="{top}"{styles}>{content}</text>'


def box(planned: PlannedAction) -> str:
    """Return a forward or a backward as a box with its name."""
    action = planned.action
    forward = action.kind is Kind.FORWARD
    fill = COLORS[action.subnet][0 if forward else 1]
    middle = (x(planned.start) + x(planned.end)) / 2
    return (
        f"<g><title>{action}, ticks {planned.start} to {planned.end}</title>"
        f'<rect x="{x(planned.start) + 1}" y="{y(action.stage) + 1}" width="{x(planned.end) - x(planned.start) - 2}" '
        f'height="{ROW - 2}" rx="3" fill="{fill}"/>'
        + text(
            middle, y(action.stage) + ROW / 2 + 4.5, f"{action.kind.letter}{action.subnet}",
            text_anchor="middle", fill=INK if forward else "#ffffff",
        )
        + "</g>"
    )  # fmt: skip


def arrow(update: PlannedAction, forward: PlannedAction) -> str:
    """Return an arrow from an update to the forward that waited for it."""
    start, end = x(update.end) - 0.45 * TICK, (x(forward.start) + x(forward.end)) / 2
    base = y(update.action.stage) + ROW
    return (
        f'<path d="M{start},{base} C{start},{base + 20} {end},{base + 20} {end},{base + 2}" fill="none" '
        f'stroke="{INK}" stroke-width="1.6" marker-end="url(#tip)"><title>{forward.action} waits for {update.action}'
        "</title></path>"
    )


def draw(plan: Plan) -> str:
    """Return the picture."""
    width, height = x(plan.makespan) + 20, y(STAGES) + 42
    alone = SUBNETS * 3 * STAGES
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="{FONT}" font-size="13">',
        "<title>Six subnets in a pipeline of four stages under the executor csp</title>",
        f"<desc>Made by benchmarks/pipeline_picture.py. Makespan {plan.makespan} ticks, bound {plan.bound}, one subnet "
        f"after another {alone}.</desc>",
        # A panel of its own keeps it legible on a dark page.
        f'<rect width="{width}" height="{height}" rx="10" fill="#ffffff"/>',
        TIP,
        text(
            LEFT, 26, f"csp on {STAGES} stages: {SUBNETS} subnets in {plan.makespan} ticks; one after another they "
            f"take {alone}", fill=INK, font_weight=600,
        ),
    ]  # fmt: skip
    for tick in range(0, plan.makespan + 1, 5):
        bottom = y(STAGES - 1) + ROW + 4
        lines.append(f'<line x1="{x(tick)}" y1="{TOP - 8}" x2="{x(tick)}" y2="{bottom}" stroke="#e5e7eb"/>')
        lines.append(text(x(tick), TOP - 12, str(tick), fill="#6b7280", font_size=11, text_anchor="middle"))
    for stage, row in enumerate(plan.actions):
        lines.append(text(16, y(stage) + ROW / 2 + 4.5, f"stage {stage}"))
        idle = f'width="{plan.makespan * TICK}" height="{ROW}" fill="#f3f4f6"'
        lines.append(f'<rect x="{x(0)}" y="{y(stage)}" {idle}/>')
        lines += [box(planned) for planned in row if planned.action.kind is not Kind.UPDATE]
    lines += [arrow(wait.update, wait.forward) for wait in causal_waits(plan)]
    lines += [text(LEFT, y(STAGES) + 6 + 19 * number, line) for number, line in enumerate(LEGEND)]
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(draw(make_plan()))
