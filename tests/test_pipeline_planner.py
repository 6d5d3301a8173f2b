"""The planner by its properties: every plan keeps its contract, for any input."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.errors import InputError, NaspipeError
from naspipe.executors import Executor, PipelineShape, StageView
from naspipe.executors.csp import CSP
from naspipe.executors.gpipe import GPipe
from naspipe.executors.one_f_one_b import OneFOneB
from naspipe.executors.pipedream import PipeDream
from naspipe.executors.sequential import Sequential
from naspipe.pipeline.abstract import AbstractSpace
from naspipe.pipeline.action import Action, Kind
from naspipe.pipeline.contract import CAUSAL, Contract
from naspipe.pipeline.drain import Admission, DrainRule
from naspipe.pipeline.occupancy import least_bubble, needed_in_flight, stage_costs
from naspipe.pipeline.plan import Plan
from naspipe.pipeline.planner import Planner
from naspipe.pipeline.scenario import Layout, Scenario
from naspipe.pipeline.statistics import stage_statistics, versions_held
from naspipe.pipeline.subnet import SubnetShape, UsedLayer
from naspipe.pipeline.validator import find_violations
from naspipe_strategies.spaced import SpacedSampler
from naspipe_strategies.uniform import UniformSampler

EXECUTORS: dict[str, Callable[[], Executor]] = {
    "sequential": Sequential,
    "csp": CSP,
    "csp backward": lambda: CSP("backward"),
    "gpipe": GPipe,
    "gpipe bulk 3": lambda: GPipe(3),
    "one_f_one_b": OneFOneB,
    "pipedream": PipeDream,
}


@st.composite
def subnet_lists(draw: st.DrawFn, blocks: int, always: Sequence[int]) -> list[SubnetShape]:
    """Subnets of any layers and costs; blocks may use no layer or several."""
    options = draw(st.integers(1, 4))
    costs = st.lists(st.integers(1, 9), min_size=blocks, max_size=blocks)
    subnets = []
    for _ in range(draw(st.integers(1, 14))):
        layers = []
        for block in range(blocks):
            names = draw(st.sets(st.integers(0, options - 1), max_size=2))
            row = [UsedLayer(str(name), True) for name in sorted(names)]
            if block in always:
                row.append(UsedLayer("always_active", False))
            layers.append(row)
        update = draw(st.lists(st.integers(0, 2), min_size=blocks, max_size=blocks))
        subnets.append(SubnetShape(layers, draw(costs), draw(costs), update))
    return subnets


@st.composite
def scenarios(draw: st.DrawFn) -> tuple[Scenario, Layout, str]:
    name = draw(st.sampled_from(sorted(EXECUTORS)))
    stages = draw(st.integers(1, 4))
    segments = draw(st.integers(1, 2)) if name.startswith("csp") else 1
    blocks = draw(st.integers(stages * segments, stages * segments + 4))
    always = tuple(sorted(draw(st.sets(st.integers(0, blocks - 1), max_size=3))))
    subnets = draw(subnet_lists(blocks, always))
    no_delay = name in ("gpipe bulk 3", "pipedream")
    delay = None if no_delay else draw(st.integers(0, 5))
    partition = draw(st.sampled_from(["static", "balanced"])) if segments == 1 else "static"
    if no_delay or name not in ("csp", "csp backward", "sequential"):
        partition = "static"
    scenario = Scenario(lambda: iter(subnets), len(subnets), draw(st.integers(1, 5)), delay, always)
    window = draw(st.none() | st.integers(1, 6)) if name.startswith("csp") else None
    return scenario, Layout(stages, segments, partition, window, draw(st.integers(0, 3))), name


@settings(deadline=None, max_examples=300)
@given(scenarios())
def test_every_plan_keeps_its_own_contract_and_the_bound(drawn: tuple[Scenario, Layout, str]) -> None:
    scenario, layout, name = drawn
    plan = scenario.plan(EXECUTORS[name](), layout, name)
    assert find_violations(plan) == []
    assert plan.bound is not None
    assert plan.makespan >= plan.bound
    assert 0 <= plan.bubble < 1
    units = scenario.count * scenario.microbatches * layout.stages * layout.segments
    assert sum(len(row) for row in plan.actions) == 2 * units + units // scenario.microbatches
    assert plan.work == sum(row.busy for row in stage_statistics(plan))


@settings(deadline=None, max_examples=300)
@given(scenarios(), st.sets(st.integers(1, 13)))
def test_a_drain_rule_drains_the_pipeline_and_what_follows_can_be_planned_alone(
    drawn: tuple[Scenario, Layout, str], places: set[int]
) -> None:
    scenario, layout, name = drawn
    executor = EXECUTORS[name]()
    bulk = 3 if name == "gpipe bulk 3" else 1
    if name == "pipedream":
        return  # Its pattern has no place to drain.
    drained = sorted(place * bulk for place in places if place * bulk < scenario.count)
    plan = scenario.plan(executor, layout, name, drained_at(drained))
    assert find_violations(plan) == []
    for first in drained:
        ended = max(planned.end for planned in plan.in_time() if planned.action.subnet < first)
        assert all(planned.start >= ended for planned in plan.in_time() if planned.action.subnet >= first)
    if drained:
        last = drained[-1]
        rest = list(scenario.planner(executor, layout, first=last).run())
        whole = list(scenario.planner(executor, layout, drains=drained_at(drained)).run())
        behind = [planned for planned in whole if planned.action.subnet >= last]
        assert [planned.action for planned in rest] == [planned.action for planned in behind]
        assert {planned.start - alone.start for planned, alone in zip(behind, rest, strict=True)} == {behind[0].start}
        stopped = scenario.planner(executor, layout, drains=drained_at(drained[:-1], last)).run()
        assert list(stopped) == whole[: len(whole) - len(behind)]


def drained_at(drained: Sequence[int], end: int | None = None) -> DrainRule:
    def drains(subnet: int) -> Admission:
        return Admission.NEVER if subnet == end else Admission.DRAINED if subnet in drained else Admission.AT_ONCE

    return drains


def repeated(*subnets: Sequence[Sequence[int]]) -> Callable[[], Iterator[SubnetShape]]:
    """Subnets by the options of their blocks."""
    shapes = [
        SubnetShape(
            [[UsedLayer(str(o), True) for o in options] for options in subnet],
            (1,) * len(subnet), (2,) * len(subnet), (0,) * len(subnet),
        )
        for subnet in subnets
    ]  # fmt: skip
    return lambda: iter(shapes)


def causal(draw: Callable[[], Iterator[SubnetShape]], count: int, stages: int, microbatches: int = 1) -> Plan:
    plan = Scenario(draw, count, microbatches, None, ()).plan(CSP(), Layout(stages), "csp")
    assert find_violations(plan) == []
    return plan


def test_identical_subnets_follow_each_other_like_sequential_training() -> None:
    plan = causal(repeated(*[[[0], [0], [0], [0]]] * 6), 6, 4)
    # F and B of 4 blocks, 3 ticks each, one subnet after another.
    assert plan.makespan == 6 * 4 * 3


def test_disjoint_subnets_fill_the_pipeline() -> None:
    plan = causal(repeated(*[[[y], [y], [y], [y]] for y in range(40)]), 40, 4)
    assert plan.bubble < 0.08


def test_subnets_without_parameters_never_wait() -> None:
    free = causal(repeated(*[[[], [], [], []]] * 40), 40, 4)
    disjoint = causal(repeated(*[[[y], [y], [y], [y]] for y in range(40)]), 40, 4)
    assert free.makespan == disjoint.makespan


def test_one_layer_shared_by_all_in_the_last_block_serialises_only_the_last_block() -> None:
    shared = causal(repeated(*[[[y], [y], [y], [0]] for y in range(40)]), 40, 4)
    assert shared.bubble < 0.08
    first = causal(repeated(*[[[0], [y], [y], [y]] for y in range(40)]), 40, 4)
    # In the first block it makes each subnet wait for the whole way of the one before.
    assert first.makespan == 40 * 4 * 3


def test_a_stage_ten_times_slower_is_busy_nearly_all_the_time() -> None:
    slow = [SubnetShape([[UsedLayer(str(y), True)]] * 4, (1, 10, 1, 1), (2, 20, 2, 2), (0,) * 4) for y in range(30)]
    plan = causal(lambda: iter(slow), 30, 4)
    assert stage_statistics(plan)[1].busy / plan.makespan > 0.95


@pytest.mark.parametrize("microbatches", [1, 2, 3, 8])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_more_and_fewer_microbatches_than_stages(microbatches: int, stages: int) -> None:
    space = AbstractSpace(8, 6)
    plan = causal(lambda: space.subnets(UniformSampler, 0), 20, stages, microbatches)
    if stages == 1:
        assert plan.bubble == 0


@pytest.mark.parametrize(("stages", "microbatches"), [(4, 1), (4, 2), (3, 2)])
def test_a_delay_costs_nothing_from_enough_on_and_its_share_below(stages: int, microbatches: int) -> None:
    space = AbstractSpace(12, 30)
    enough = -(-(stages - 1) // microbatches)
    for delay in range(enough + 3):
        scenario = Scenario(
            lambda: space.subnets(lambda: SpacedSampler(12), 0, ends_always_active=True), 200, microbatches,
            delay, (0, 11),
        )  # fmt: skip
        plan = scenario.plan(CSP(), Layout(stages))
        # S stages and M micro-batches have S + M - 1 places, and D + 1 subnets fill M each.
        expected = max(0.0, 1 - (delay + 1) * microbatches / (stages + microbatches - 1))
        # Filling and draining 200 subnets takes up to 2 %.
        assert plan.bubble == pytest.approx(expected, abs=0.02), delay
        assert find_violations(plan) == []


@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(1, 5), st.integers(1, 5), st.integers(1, 6))
def test_few_subnets_in_flight_cost_what_is_said_at_least(
    data: st.DataObject, stages: int, microbatches: int, window: int
) -> None:
    blocks = data.draw(st.integers(stages, stages + 4))
    forward, backward = (data.draw(st.tuples(*[st.integers(1, 9)] * blocks)) for _ in range(2))
    # Without parameters nothing but the window makes a subnet wait.
    subnets = [SubnetShape([[]] * blocks, forward, backward, (0,) * blocks)] * 40
    scenario = Scenario(lambda: iter(subnets), 40, microbatches, None, ())
    layout = Layout(stages, window=window)
    costs = stage_costs(scenario, layout)
    bubble = scenario.plan(CSP(), layout).bubble
    assert bubble >= least_bubble(costs, microbatches, window) - 1e-9


@pytest.mark.parametrize(("stages", "microbatches"), [(4, 1), (4, 2), (3, 5), (8, 3)])
def test_a_window_costs_equal_stages_just_what_is_said(stages: int, microbatches: int) -> None:
    subnets = [SubnetShape([[]] * stages, (1,) * stages, (2,) * stages, (0,) * stages)] * 200
    scenario = Scenario(lambda: iter(subnets), len(subnets), microbatches, None, ())
    enough = needed_in_flight([3] * stages, microbatches)
    assert enough == 1 + -(-(stages - 1) // microbatches)
    for window in range(1, enough + 2):
        expected = least_bubble([3] * stages, microbatches, window)
        assert (expected > 0) == (window * microbatches < stages + microbatches - 1)
        # Filling and draining 200 subnets takes up to 4 %.
        assert scenario.plan(CSP(), Layout(stages, window=window)).bubble == pytest.approx(expected, abs=0.04)


def test_always_active_versions_are_the_delay_plus_one() -> None:
    space = AbstractSpace(4, 30)
    for delay in (0, 2, 5):
        scenario = Scenario(
            lambda: space.subnets(lambda: SpacedSampler(12), 0, ends_always_active=True), 40, 1, delay, (0, 3)
        )
        plan = scenario.plan(Sequential(), Layout(2))
        assert versions_held(plan) == [delay, delay]
        names = ["always_active", *map(str, range(30))]
        sizes = {(block, name): 10 if name == "always_active" else 1 for block in range(4) for name in names}
        assert versions_held(plan, sizes) == [10 * delay, 10 * delay]


def test_pipedream_holds_a_version_for_each_subnet_ahead() -> None:
    space = AbstractSpace(4, 1)
    plan = Scenario(lambda: space.subnets(UniformSampler, 0), 20, 1, None, ()).plan(PipeDream(), Layout(4))
    assert versions_held(plan) == [3, 2, 1, 0]
    assert [row.activations for row in stage_statistics(plan)] == [4, 3, 2, 1]


def test_gpipe_holds_all_microbatches_and_one_f_one_b_only_those_ahead() -> None:
    space = AbstractSpace(4, 3)
    held = {}
    for executor in (GPipe(), OneFOneB()):
        plan = Scenario(lambda: space.subnets(UniformSampler, 0), 3, 8, None, ()).plan(executor, Layout(4))
        held[type(executor)] = [row.activations for row in stage_statistics(plan)]
        # Both fill and drain once a subnet: (S - 1) / (M + S - 1).
        assert plan.bubble == pytest.approx(3 / 11)
    assert held == {GPipe: [8, 8, 8, 8], OneFOneB: [4, 3, 2, 1]}


def test_a_bulk_shares_one_flush_and_the_last_may_be_short() -> None:
    space = AbstractSpace(4, 3)
    plan = Scenario(lambda: space.subnets(UniformSampler, 0), 10, 2, None, ()).plan(GPipe(4), Layout(4))
    assert find_violations(plan) == []
    order = [str(p.action) for p in plan.actions[0] if p.action.kind is Kind.UPDATE]
    assert order == [f"0U{y}" for y in range(10)]


def test_a_balanced_partition_moves_blocks_and_is_counted() -> None:
    costs = [(1, 1, 1, 9), (9, 1, 1, 1)]
    subnets = [SubnetShape([[UsedLayer(str(y), True)]] * 4, costs[y % 2], costs[y % 2], (0,) * 4) for y in range(20)]
    scenario = Scenario(lambda: iter(subnets), 20, 1, None, ())
    balanced = scenario.plan(CSP(), Layout(2, partition="balanced"))
    assert find_violations(balanced) == []
    assert sum(row.moves for row in stage_statistics(balanced)) == 20
    static = scenario.plan(CSP(), Layout(2))
    assert sum(row.moves for row in stage_statistics(static)) == 0
    explicit = scenario.plan(CSP(), Layout(2, partition=[1, 3]))
    assert explicit.subnets[0].cuts == (0, 1, 4)


def test_the_plan_is_the_same_in_processes_with_different_hash_seeds() -> None:
    code = (
        "import hashlib\n"
        "from naspipe.pipeline.abstract import AbstractSpace\n"
        "from naspipe.pipeline.scenario import Layout, Scenario\n"
        "from naspipe.executors.csp import CSP\n"
        "from naspipe_strategies.uniform import UniformSampler\n"
        "space = AbstractSpace(12, 5)\n"
        "scenario = Scenario(lambda: space.subnets(UniformSampler, 0, True), 60, 2, 6, (0, 11))\n"
        "planner = scenario.planner(CSP(), Layout(3, 2))\n"
        "print(hashlib.sha256(repr(list(planner.run())).encode()).hexdigest())\n"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(digests) == 1


def test_subnets_are_pulled_only_when_the_window_admits_them() -> None:
    space = AbstractSpace(4, 2)
    pulled = 0

    def draw() -> Iterator[SubnetShape]:
        nonlocal pulled
        for subnet in space.subnets(UniformSampler, 0):
            pulled += 1
            yield subnet

    shape = PipelineShape(2, 1, 50)
    planner = Planner(CSP(), shape, draw(), lambda subnet: (0, 2, 4), window=3)
    updated = 0
    for planned in planner.run():
        updated += planned.action.kind is Kind.UPDATE and planned.action.stage == 0
        assert pulled <= updated + 3


def test_planning_forgets_finished_subnets() -> None:
    space = AbstractSpace(6, 3)
    shape = PipelineShape(2, 1, 5000)
    planner = Planner(CSP(), shape, space.subnets(UniformSampler, 0), lambda subnet: (0, 3, 6))
    for count, _ in enumerate(planner.run()):
        if count % 1000 == 0:
            assert len(planner._active) <= 8
            for active in planner._active.values():
                assert all(other.index in planner._active for other in active._successors)


class Stubborn(CSP):
    """Never picks a backward."""

    def choose(self, ready: Sequence[Action], view: StageView) -> Action | None:
        return next((action for action in ready if action.kind is Kind.FORWARD), None)


class Dreamer(CSP):
    """Picks what is not ready."""

    def choose(self, ready: Sequence[Action], view: StageView) -> Action | None:
        return ready[0]._replace(subnet=99)


def test_a_policy_that_waits_for_ever_is_named_and_does_not_hang() -> None:
    space = AbstractSpace(4, 2)
    scenario = Scenario(lambda: space.subnets(UniformSampler, 0), 10, 1, None, ())
    with pytest.raises(NaspipeError, match=r"executor Stubborn must choose some ready action .*Ready: stage 1: 1B0"):
        scenario.plan(Stubborn(), Layout(2))


def test_a_policy_that_picks_what_is_not_ready_is_named() -> None:
    space = AbstractSpace(4, 2)
    scenario = Scenario(lambda: space.subnets(UniformSampler, 0), 10, 1, None, ())
    with pytest.raises(NaspipeError, match=r"executor Dreamer must choose a ready action .* chose 0F99. Ready: 0F0"):
        scenario.plan(Dreamer(), Layout(2))


@pytest.mark.parametrize(
    ("layout", "executor", "message"),
    [
        (Layout(5), CSP(), "there are 5 stages for 4 blocks. Use at most 4 stages"),
        (Layout(2, 3), CSP(), "every stage must have 3 blocks, but there are 2 stages for 4 blocks"),
        (Layout(2, 3, partition=[1, 3]), CSP(), "stage 0 has 1 blocks for 3 segments"),
        (Layout(2, 2), GPipe(), "runs each stage in one segment, but segments is 2"),
        (Layout(2, partition=[4, 0]), CSP(), "at least one of the 4 blocks"),
        (Layout(2, partition=[1, 2]), CSP(), r"gives \[1, 2\] \(sum 3\)"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(layout: Layout, executor: Executor, message: str) -> None:
    space = AbstractSpace(4, 2)
    scenario = Scenario(lambda: space.subnets(UniformSampler, 0), 10, 1, None, ())
    with pytest.raises(InputError, match=message):
        scenario.plan(executor, layout)


@pytest.mark.parametrize(("executor", "window"), [(GPipe(4), 2), (PipeDream(), 1)])
def test_a_window_that_starves_a_fixed_pattern_is_refused(executor: Executor, window: int) -> None:
    space = AbstractSpace(4, 2)
    scenario = Scenario(lambda: space.subnets(UniformSampler, 0), 10, 1, None, ())
    with pytest.raises(InputError, match=f"needs . subnets in flight, but window is {window}. Set no window"):
        scenario.plan(executor, Layout(3, window=window))


@pytest.mark.parametrize("executor", [GPipe(2), PipeDream()])
def test_a_delay_where_the_contract_has_none_is_refused(executor: Executor) -> None:
    space = AbstractSpace(4, 2)
    scenario = Scenario(lambda: space.subnets(UniformSampler, 0, True), 10, 1, 2, (0, 3))
    with pytest.raises(InputError, match="governs all layers, and delay is 2"):
        scenario.plan(executor, Layout(2))


@given(st.integers(0, 99), st.sampled_from("FBU"), st.integers(0, 99), st.integers(0, 9), st.integers(0, 9))
def test_an_actions_text_goes_both_ways(stage: int, kind: str, subnet: int, microbatch: int, segment: int) -> None:
    action = Action(stage, Kind("FBU".index(kind)), subnet, 0 if kind == "U" else microbatch, segment)
    assert Action.parse(str(action)) == action


@pytest.mark.parametrize(
    "text",
    ["", "F7", "0F", "0F0garbage", " 0F0", "00F1", "0F01", "0X1", "0U1.1", "0F1.0", "0.0F1", "0F1\n", "0f1"],
)
def test_anything_else_is_no_action(text: str) -> None:
    with pytest.raises(InputError, match="an action must read like"):
        Action.parse(text)


@pytest.mark.parametrize("contract", [CAUSAL, Contract("flush", 3), Contract("stale", 0)])
def test_a_contracts_text_goes_both_ways(contract: Contract) -> None:
    assert Contract.parse(str(contract)) == contract
    for text in (f"{contract} ", "flush(0)", "stale", "Causal"):
        with pytest.raises(InputError, match="a contract must read like"):
            Contract.parse(text)


GOLDEN = Path(__file__).parent / "golden"
CASES = {
    "csp": (CSP(), 1, None), "csp_microbatches": (CSP(), 2, None), "csp_delay": (CSP(), 1, 2),
    "gpipe_bulk": (GPipe(2), 1, None), "one_f_one_b": (OneFOneB(), 3, None),
    "pipedream": (PipeDream(), 1, None), "sequential": (Sequential(), 1, None),
}  # fmt: skip


def golden_text(name: str) -> str:
    """Draw a small plan: a line a stage, a column a tick, F and B by their subnet."""
    executor, microbatches, delay = CASES[name]
    space = AbstractSpace(3, 3)
    always = (0, 2) if delay is not None else ()
    scenario = Scenario(lambda: space.subnets(UniformSampler, 4, bool(always)), 5, microbatches, delay, always)
    plan = scenario.plan(executor, Layout(3))
    options = ["".join(layers[0].name for layers in subnet.layers) for subnet in plan.subnets]
    lines = [f"{name}: {plan.contract}, makespan {plan.makespan}, bound {plan.bound}, subnets {' '.join(options)}"]
    for row in plan.actions:
        line = ""
        for planned in row:
            line = line.ljust(4 * planned.start)
            if planned.action.kind is Kind.UPDATE:
                continue
            text = str(planned.action)[1:]
            line += text.ljust(4 * (planned.end - planned.start), "-" if planned.action.kind else " ")
        lines.append(line.rstrip())
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", sorted(CASES))
def test_small_plans_stay_as_they_are(name: str) -> None:
    """Regenerate after a change of policy: python tests/test_pipeline_planner.py (and read the diff)."""
    assert golden_text(name) == (GOLDEN / f"{name}.txt").read_text()


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for case in itertools.chain(CASES):
        (GOLDEN / f"{case}.txt").write_text(golden_text(case))
