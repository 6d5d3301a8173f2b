"""Causal waits, and what is drawn of a plan: its timeline, its trace, and the page of a simulation."""

import dataclasses
import json
import re
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.executors.csp import CSP
from naspipe.executors.gpipe import GPipe
from naspipe.executors.pipedream import PipeDream
from naspipe.pipeline.abstract import AbstractSpace
from naspipe.pipeline.action import Action, Kind
from naspipe.pipeline.plan import Plan
from naspipe.pipeline.scenario import Layout, Scenario
from naspipe.pipeline.subnet import SubnetShape
from naspipe.pipeline.validator import find_violations
from naspipe.pipeline.waits import causal_waits
from naspipe.report.perfetto import trace_events, write_trace
from naspipe.report.simulation import simulation_figure, write_simulation
from naspipe.report.timeline import timeline_figure, write_timeline
from naspipe_strategies.uniform import UniformSampler


def make_plan(
    executor: Any = None,
    blocks: int = 6,
    options: int = 3,
    count: int = 12,
    stages: int = 3,
    microbatches: int = 1,
    segments: int = 1,
    delay: int | None = None,
    seed: int = 0,
    update: int = 0,
    partition: Any = "static",
) -> Plan:
    space = AbstractSpace(blocks, options)

    def draw() -> Any:
        for subnet in space.subnets(UniformSampler, seed, delay is not None):
            # Unequal costs, so that balanced partitions differ from subnet to subnet.
            costs = [1 + int(row[0].name) for row in subnet.layers]
            yield SubnetShape(subnet.layers, costs, [2 * cost for cost in costs], (update,) * blocks)

    ends = () if delay is None else (0, blocks - 1)
    scenario = Scenario(draw, count, microbatches, delay, ends)
    layout = Layout(stages, segments, partition)
    return scenario.plan(executor or CSP(), layout, "csp" if executor is None else "other")


def brute_force_waits(plan: Plan) -> set[tuple[Action, Action]]:
    """Compare every subnet with every earlier one, block by block."""
    times = {planned.action: planned for row in plan.actions for planned in row}

    def action(part: int, kind: Kind, subnet: int) -> Action:
        return Action(part // plan.segments, kind, subnet, 0, part % plan.segments)

    def part_of(subnet: int, block: int) -> int:
        cuts = plan.subnets[subnet].cuts
        return next(part for part in range(len(cuts) - 1) if cuts[part] <= block < cuts[part + 1])

    found = set()
    for y, subnet in enumerate(plan.subnets):
        for part in range(plan.stages * plan.segments):
            required = []
            for block in range(subnet.cuts[part], subnet.cuts[part + 1]):
                for layer in subnet.layers[block]:
                    delayed = not layer.strict and plan.delay is not None
                    limit = y - (plan.delay or 0) if delayed else plan.contract.horizon(y)
                    users = [x for x in range(limit) if layer in plan.subnets[x].layers[block]]
                    for x in users if delayed else users[-1:]:
                        required.append(times[action(part_of(x, block), Kind.UPDATE, x)])
            arrived = times[action(part - 1, Kind.FORWARD, y)].end if part else 0
            late = [update for update in required if update.end > arrived]
            if late:
                last = max(late, key=lambda u: (u.end, u.action.subnet, -u.action.stage, -u.action.segment))
                found.add((last.action, action(part, Kind.FORWARD, y)))
    return found


def pairs(plan: Plan) -> list[tuple[Action, Action]]:
    return [(wait.update.action, wait.forward.action) for wait in causal_waits(plan)]


plans = st.builds(
    make_plan,
    blocks=st.integers(6, 9),
    options=st.integers(1, 6),
    count=st.integers(1, 20),
    stages=st.integers(1, 3),
    microbatches=st.integers(1, 3),
    segments=st.integers(1, 2),
    delay=st.none() | st.integers(0, 6),
    seed=st.integers(0, 99),
    update=st.integers(0, 2),
    partition=st.sampled_from(["static", "balanced"]),
)


@settings(max_examples=80, deadline=None)
@given(plans)
def test_causal_waits_are_those_found_by_comparing_all_subnets(plan: Plan) -> None:
    found = pairs(plan)
    assert len(set(found)) == len(found)
    assert set(found) == brute_force_waits(plan)


@pytest.mark.parametrize("executor", [GPipe(bulk=4), PipeDream()])
def test_waits_of_other_contracts_follow_their_horizon(executor: Any) -> None:
    plan = make_plan(executor, options=2, count=20)
    assert set(pairs(plan)) == brute_force_waits(plan) != set()


def test_a_forward_that_waits_starts_after_the_update_it_waits_for() -> None:
    waits = causal_waits(make_plan(count=40))
    assert waits
    assert all(wait.update.end <= wait.forward.start for wait in waits)
    assert [wait.forward.start for wait in waits] == sorted(wait.forward.start for wait in waits)


def test_one_subnet_at_a_time_waits_on_every_first_part() -> None:
    plan = make_plan(options=1, count=5, stages=2)
    assert [str(forward) for _, forward in pairs(plan) if forward.stage == 0] == ["0F1", "0F2", "0F3", "0F4"]


def test_waits_of_a_plan_without_some_actions_leave_these_out() -> None:
    plan = make_plan()
    lost = {update for update, _ in pairs(plan)}
    rows = tuple(tuple(p for p in row if p.action not in lost) for row in plan.actions)
    assert not lost & {update for update, _ in pairs(dataclasses.replace(plan, actions=rows))}


# The figure


def bars(figure: Any) -> int:
    names = ("forward", "backward", "update")
    return sum(len(trace.y) for trace in figure.data if trace.name in names)


@settings(max_examples=20, deadline=None)
@given(plans)
def test_the_figure_has_a_bar_for_each_action_in_few_traces(plan: Plan) -> None:
    figure = timeline_figure(plan)
    assert bars(figure) == sum(map(len, plan.actions))
    assert len(figure.data) <= 6
    assert not figure.layout.annotations


def test_bars_stand_where_their_actions_do() -> None:
    plan = make_plan(update=2)
    figure = timeline_figure(plan)
    drawn = {
        (trace.name, stage, start, start + width, text[3 : text.index("</b>")])
        for trace in figure.data
        if trace.type == "bar"
        for stage, start, width, text in zip(trace.y, trace.base, trace.x, trace.hovertext, strict=True)
    }
    assert drawn == {
        (p.action.kind.name.lower(), stage, p.start, p.end, str(p.action))
        for stage, row in enumerate(plan.actions)
        for p in row
    }


def test_arrows_lead_from_updates_to_the_forwards_that_waited() -> None:
    plan = make_plan(count=30, partition="balanced")
    figure = timeline_figure(plan)
    lines, heads = [trace for trace in figure.data if trace.name == "causal wait"]
    waits = causal_waits(plan)
    arrows: list[list[float]] = [[]]
    for x in lines.x:
        arrows.append([]) if x is None else arrows[-1].append(x)
    assert [(arrow[0], arrow[-1]) for arrow in arrows[:-1]] == [(wait.update.end, wait.forward.start) for wait in waits]
    assert list(heads.x) == [wait.forward.start for wait in waits]
    assert len({lines.legendgroup, heads.legendgroup}) == 1, "one entry of the legend hides both"
    assert [lines.showlegend is False, heads.showlegend is False] == [False, True]


def test_a_large_plan_is_drawn_up_to_a_number_of_actions_and_the_axis_says_so() -> None:
    plan = make_plan()
    figure = timeline_figure(plan, max_actions=20)
    assert bars(figure) == 20
    total = sum(map(len, plan.actions))
    assert figure.layout.xaxis.title.text == f"tick (the first 20 of {total} actions)"
    starts = sorted(p.start for row in plan.actions for p in row)
    assert max(max(t.base) for t in figure.data if t.type == "bar") <= starts[20]


# The pages


def text_of(path: Any) -> str:
    """Return a page's text without scripts and styles, after checking that it loads nothing."""
    page = path.read_text(encoding="utf-8")
    assert not re.search(r"""<(?:script|img|iframe)[^>]*\bsrc=|<link|@import""", page.split("<script>", 1)[0])
    body = page[page.index("<body>") :]
    assert not re.search(r"""<(?:script|img|iframe)[^>]*\bsrc=|<link|https?://""", body)
    assert "plotly.js v" in page
    return re.sub(r"<[^>]+>", " ", re.sub(r"(?s)<script.*?</script>", "", body))


def test_the_page_names_what_the_plan_is(tmp_path: Any) -> None:
    plan = make_plan(delay=2, microbatches=2)
    write_timeline(plan, tmp_path / "plan.html", find_violations(plan))
    text = " ".join(text_of(tmp_path / "plan.html").split())
    assert "NASPipe plan: csp on 3 stages" in text
    for figure in (
        "causal contract", "kept verdict", "csp executor", "3 stages", "1 segments", "2 micro-batches",
        "2 delay", "12 subnets", f"{plan.makespan} makespan", f"{plan.bound} bound",
        f"{plan.bubble:.3f} bubble",
        f"{plan.makespan / plan.bound:.3f} makespan / bound",
    ):  # fmt: skip
        assert figure in text
    assert "more versions" in text
    assert "are drawn" not in text


def test_the_page_of_a_broken_plan_lists_what_is_wrong(tmp_path: Any) -> None:
    plan = make_plan(options=2)
    place = next(i for i, p in enumerate(plan.actions[0]) if p.action.kind is Kind.UPDATE)
    rows = (tuple(p for i, p in enumerate(plan.actions[0]) if i != place), *plan.actions[1:])
    plan = dataclasses.replace(plan, actions=rows, executor="<mine>", bound=None)
    violations = find_violations(plan)
    write_timeline(plan, tmp_path / "plan.html", violations)
    text = text_of(tmp_path / "plan.html")
    assert f"Violations of the plan's rules: {len(violations)}" in text.replace("&#x27;", "'")
    assert violations[0].message in text.replace("&#x27;", "'")
    assert "broken verdict" in " ".join(text.split())
    assert "&lt;mine&gt;" in text
    assert "unknown" in text


def test_the_page_of_a_plan_without_subnets_can_be_written(tmp_path: Any) -> None:
    empty = dataclasses.replace(make_plan(), subnets=(), actions=((), (), ()), messages=(), bound=0)
    write_timeline(empty, tmp_path / "plan.html")
    assert "0 subnets" in " ".join(text_of(tmp_path / "plan.html").split())
    assert {event["ph"] for event in trace_events(empty)["traceEvents"]} == {"M"}


def test_the_page_of_a_large_plan_says_how_much_is_drawn(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("naspipe.report.timeline.timeline_figure", lambda plan: timeline_figure(plan, 20))
    plan = make_plan()
    write_timeline(plan, tmp_path / "plan.html")
    assert f"Only the first 20 of {sum(map(len, plan.actions))} actions are drawn" in text_of(tmp_path / "plan.html")


# The trace


@settings(max_examples=40, deadline=None)
@given(plans)
def test_the_trace_has_each_action_once_with_its_time(plan: Plan) -> None:
    events = trace_events(plan)["traceEvents"]
    slices = [(e["name"], e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    expected = [
        (str(p.action), 2 * stage + (2 if p.action.kind is Kind.UPDATE else 1), p.start, p.end - p.start)
        for stage, row in enumerate(plan.actions)
        for p in row
    ]
    assert sorted(slices) == sorted(expected)


@settings(max_examples=40, deadline=None)
@given(plans)
def test_flows_pair_up_and_bind_to_the_slices_they_join(plan: Plan) -> None:
    events = trace_events(plan)["traceEvents"]
    ends: dict[str, dict[int, str]] = {"s": {}, "f": {}}
    # As Perfetto reads it: by time, then the longest slice first, then in the order of the file; a flow binds
    # to the latest slice of its thread that no later slice has closed.
    stacks: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in sorted((e for e in events if e["ph"] != "M"), key=lambda e: (e["ts"], -e.get("dur", 0))):
        stack = stacks[event["tid"]]
        if event["ph"] == "X":
            while stack and stack[-1]["ts"] + stack[-1]["dur"] <= event["ts"]:
                stack.pop()
            assert not stack, "no slice is a part of another"
            stack.append(event)
            continue
        bound = stack[-1]
        assert bound["ts"] <= event["ts"] <= bound["ts"] + bound["dur"]
        assert event["id"] not in ends[event["ph"]]
        assert event["ph"] == "s" or event["id"] in ends["s"], "a flow starts before it ends"
        ends[event["ph"]][event["id"]] = bound["name"]
    assert ends["s"].keys() == ends["f"].keys()
    flows = {(ends["s"][number], ends["f"][number]) for number in ends["s"]}
    waits = {(str(update), str(forward)) for update, forward in pairs(plan)}
    assert waits <= flows
    messages = {source for source, _ in flows - waits}
    assert messages == {message.action for message in plan.messages}


def test_the_trace_names_its_stages_and_round_trips(tmp_path: Any) -> None:
    plan = make_plan(update=1)
    write_trace(plan, tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    assert trace == trace_events(plan)
    names = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert names == {
        1: "stage 0", 2: "stage 0, updates", 3: "stage 1", 4: "stage 1, updates", 5: "stage 2",
        6: "stage 2, updates",
    }  # fmt: skip
    assert trace["otherData"]["contract"] == "causal"
    first = next(e for e in trace["traceEvents"] if e["ph"] == "X")
    assert first["args"] == {"subnet": 0, "microbatch": 0, "segment": 0, "blocks": "0 to 1", "message": 0}


# Simulations


def rows_of(**extra: Any) -> list[dict[str, Any]]:
    return [
        {
            "space": space, "executor": "csp", "sampler": sampler, "stages": stages, "microbatches": 1,
            "segments": 1, "seed": seed, "subnets": 100, "makespan": 1000 + seed, "bound": 1000,
            "bubble": 0.1 * stages + 0.01 * seed, **extra,
        }
        for space in ("12x6", "nlp.c1") for sampler in ("uniform", "spaced")
        for stages in (1, 2, 4) for seed in range(3)
    ]  # fmt: skip


def test_a_simulation_has_a_subplot_for_each_space_and_a_line_for_each_sampler() -> None:
    figure = simulation_figure(rows_of())
    assert len(figure.data) == 4
    assert [trace.name for trace in figure.data if trace.showlegend] == ["csp, uniform", "csp, spaced"]
    line = figure.data[0]
    assert list(line.x) == ["1", "2", "4"]
    assert list(line.y) == pytest.approx([0.11, 0.21, 0.41])
    assert list(line.error_y.array) == pytest.approx([0.01] * 3)
    assert list(line.error_y.arrayminus) == pytest.approx([0.01] * 3)
    assert [annotation.text for annotation in figure.layout.annotations] == ["12x6", "nlp.c1"]


def test_a_line_names_what_differs() -> None:
    rows = [*rows_of(delay=None), *rows_of(delay=8, microbatches=4)]
    names = {trace.name for trace in simulation_figure(rows).data}
    assert names == {
        "csp, uniform, 1 micro-batch, no delay", "csp, spaced, 1 micro-batch, no delay",
        "csp, uniform, 4 micro-batches, delay 8", "csp, spaced, 4 micro-batches, delay 8",
    }  # fmt: skip


def test_the_page_of_a_simulation_is_self_contained_and_has_the_means(tmp_path: Any) -> None:
    write_simulation(rows_of(distance=4), tmp_path / "simulation.html", "A <grid>.")
    text = " ".join(text_of(tmp_path / "simulation.html").split())
    assert "A &lt;grid&gt;. Mean over the seeds" in text
    assert "In all rows: executor csp, micro-batches 1, segments 1, distance 4, subnets 100." in text
    assert "nlp.c1 spaced 4 3 0.410 0.400 to 0.420 1,001 1.001" in text
