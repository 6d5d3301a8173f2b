"""Plan files, cost tables, partitions, the bound: what comes in and goes out."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naspipe.errors import ConfigError, InputError
from naspipe.executors.csp import CSP
from naspipe.executors.gpipe import GPipe
from naspipe.pipeline.abstract import PRESETS, AbstractSpace, parse_space
from naspipe.pipeline.bound import Bound
from naspipe.pipeline.contract import CAUSAL, Contract
from naspipe.pipeline.costs import CostTable, scaled_table
from naspipe.pipeline.partition import balanced_cuts, explicit_cuts, segment_cuts
from naspipe.pipeline.plan import Plan
from naspipe.pipeline.planfile import plan_to_json, read_plan, write_plan
from naspipe.pipeline.scenario import Layout, Scenario
from naspipe.pipeline.subnet import SubnetShape, UsedLayer
from naspipe.pipeline.validator import find_violations
from naspipe_strategies.spaced import SpacedSampler
from naspipe_strategies.uniform import UniformSampler


@pytest.fixture
def plan() -> Plan:
    space = AbstractSpace(6, 3)
    scenario = Scenario(lambda: space.subnets(UniformSampler, 0, True), 6, 2, 3, (0, 5))
    return scenario.plan(CSP(), Layout(2, 2), "csp")


def test_a_plan_file_goes_both_ways(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_plan(plan, path)
    again = read_plan(path)
    assert plan_to_json(again) == plan_to_json(plan)
    assert again.actions == plan.actions
    assert find_violations(again) == []


def test_a_plan_file_holds_what_it_promises(plan: Plan, tmp_path: Path) -> None:
    write_plan(plan, tmp_path / "plan.json")
    data = json.loads((tmp_path / "plan.json").read_text())
    assert data["version"] == 1
    assert (data["contract"], data["stages"], data["microbatches"], data["delay"]) == ("causal", 2, 2, 3)
    assert data["subnets"][0]["layers"][0][-1] == ["always_active", False]
    text, start, end, first, last = data["actions"][0][0]
    assert (text, first, last) == (str(plan.actions[0][0].action), 0, plan.subnets[0].cuts[1])
    assert end > start >= 0
    assert data["messages"][0][1:] == [0, 1]
    assert data["makespan"] >= data["bound"] > 0
    assert 0 <= data["bubble"] < 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version: must be 1, the version that this NASPipe reads, but is 2"),
        ({"contrakt": "causal"}, "contrakt: unknown key. Did you mean 'contract'"),
        ({"contract": "casual"}, "contract: a contract must read like causal"),
        ({"contract": "stale(1)"}, r"delay: must be null, since stale\(1\) governs all layers, but is 3"),
        ({"stages": 0}, "stages: must be greater than or equal to 1"),
        ({"stages": 3}, "must list the actions of 3 stages, but lists those of 2"),
        ({"subnets": None}, "subnets: must be a valid array, but got None"),
        ({"actions": [[["0F0", 0, 1, 0]], []]}, r"actions\[0\]\[0\]\[4\]: must be given, but is missing"),
        ({"actions": [[["0X0", 0, 1, 0, 2]], []]}, r"actions\[0\]\[0\]: an action must read like"),
    ],
)
def test_a_plan_file_with_a_mistake_names_its_place(
    plan: Plan, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**plan_to_json(plan), **change}))
    with pytest.raises(ConfigError, match=message):
        read_plan(path)


def test_a_plan_file_without_a_subnet_is_judged(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    data = plan_to_json(plan)
    path.write_text(json.dumps({**data, "subnets": data["subnets"][:-1]}))
    texts = [violation.message for violation in find_violations(read_plan(path))]
    assert any("must be of one of the 5 subnets, but there is no 5" in text for text in texts)


def test_a_plan_file_with_wrong_cuts_is_refused(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    data = plan_to_json(plan)
    data["subnets"][2]["cuts"] = [0, 3, 3, 4, 6]
    path.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=r"subnets\[2\].cuts: must cut its 6 blocks into 4 parts"):
        read_plan(path)


def test_no_file_and_no_json_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_plan(tmp_path / "none.json")
    (tmp_path / "odd.json").write_text("{")
    with pytest.raises(ConfigError, match="Invalid JSON"):
        read_plan(tmp_path / "odd.json")


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(1, 8))
def test_balanced_cuts_are_the_best_there_are(costs: list[int], parts: int) -> None:
    if parts > len(costs):
        with pytest.raises(InputError, match="every stage must have a block"):
            balanced_cuts(costs, parts)
        return
    cuts = balanced_cuts(costs, parts)
    assert (cuts[0], cuts[-1], len(cuts)) == (0, len(costs), parts + 1)
    assert list(cuts) == sorted(set(cuts))

    def worst(inner: tuple[int, ...]) -> int:
        return max(sum(costs[a:b]) for a, b in itertools.pairwise((0, *inner, len(costs))))

    def squares(inner: tuple[int, ...]) -> int:
        return sum(sum(costs[a:b]) ** 2 for a, b in itertools.pairwise((0, *inner, len(costs))))

    every = list(itertools.combinations(range(1, len(costs)), parts - 1))
    assert (worst(cuts[1:-1]), squares(cuts[1:-1])) == min((worst(inner), squares(inner)) for inner in every)


def test_segments_cut_stages_further_and_keep_their_bounds() -> None:
    costs = [1] * 12
    stages = balanced_cuts(costs, 3)
    cuts = segment_cuts(costs, stages, 2)
    assert stages == (0, 4, 8, 12)
    assert cuts == (0, 2, 4, 6, 8, 10, 12)
    assert explicit_cuts([2, 9, 1], 12, 3) == (0, 2, 11, 12)
    # Seven blocks in three stages of two segments: the evenest of the best cuts leaves room for them.
    assert balanced_cuts([1] * 7, 3, 2) == (0, 3, 5, 7)


def bound_of(
    subnets: Iterable[SubnetShape], contract: Contract, stages: int, microbatches: int, delay: int | None
) -> int:
    bound = Bound(contract, microbatches, delay)
    for subnet in subnets:
        bound.add(subnet)
    return bound.value(stages)


@given(st.integers(0, 100), st.integers(1, 4), st.integers(1, 3), st.integers(1, 4))
def test_the_bound_of_one_stage_is_its_work(seed: int, options: int, microbatches: int, blocks: int) -> None:
    space = AbstractSpace(blocks, options)
    subnets = list(itertools.islice(space.subnets(UniformSampler, seed), 9))
    bound = bound_of(subnets, CAUSAL, 1, microbatches, None)
    # One device runs everything; chains are never longer than that.
    assert bound == 9 * blocks * 3 * microbatches


def test_the_bound_of_identical_subnets_is_their_chain() -> None:
    subnets = [SubnetShape([[UsedLayer("a", True)]] * 4, (1,) * 4, (2,) * 4, (0,) * 4)] * 5
    assert bound_of(subnets, CAUSAL, 4, 1, None) == 5 * 12
    # Under stale(3) three of four may go side by side.
    assert bound_of(subnets, Contract("stale", 3), 4, 1, None) == 24
    always = [s._replace(layers=[[UsedLayer("a", False)]] * 4) for s in subnets]
    assert bound_of(always, CAUSAL, 4, 1, 0) == 60
    assert bound_of(always, CAUSAL, 4, 1, 4) == max(12, 5 * 12 // 4)


def test_microbatches_lengthen_the_chain_by_one_block_each() -> None:
    subnet = SubnetShape([[UsedLayer("a", True)]] * 4, (1,) * 4, (2,) * 4, (0,) * 4)
    # Forward 4 + 3 later micro-batches, backward 8 + 3 * 2; the last backward ends with them.
    assert bound_of([subnet], CAUSAL, 100, 4, None) == 4 + 8 + 3 * 2


def table(**change: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "blocks": [{"base": [1, 2, 0], "layers": {"a": [3, 6, 1]}}, {"base": [2, 2, 2]}],
        **change,
    }


def test_a_cost_table_adds_layers_to_its_blocks(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(table()))
    read = CostTable.read(path)
    subnet = read.describe([[UsedLayer("a", True)], [UsedLayer("b", True)]])
    assert (subnet.forward, subnet.backward, subnet.update) == ((4, 2), (8, 2), (1, 2))
    read.write(tmp_path / "again.json")
    assert CostTable.read(tmp_path / "again.json") == read


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([{"base": [-1, 2, 0]}], "blocks.0.base.0: must be greater than or equal to 0, but got -1"),
        ([{"bas": [1, 2, 0]}], "blocks.0.bas: Extra inputs are not permitted"),
        ([{"base": [1.5, 2, 0]}], "must be a valid integer"),
    ],
)
def test_a_cost_table_with_a_mistake_names_its_place(tmp_path: Path, blocks: Any, message: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(table(blocks=blocks)))
    with pytest.raises(ConfigError, match=message):
        CostTable.read(path)


def test_a_forward_that_costs_nothing_is_refused() -> None:
    free = CostTable.model_validate_json('{"blocks": [{"base": [0, 1, 0]}]}')
    with pytest.raises(InputError, match="forward and backward of block 0 must cost at least 1 tick, but cost 0"):
        free.describe([[UsedLayer("a", True)]])
    with pytest.raises(InputError, match="an entry for each of the 2 blocks, but has 1"):
        CostTable.uniform(1).describe([[], []])


def test_scaled_costs_keep_their_proportions() -> None:
    scaled = scaled_table([(1e6, {}), (1e6, {"a": 2e6, "b": 0.0})])
    first, second = scaled.blocks
    assert first.base == (667, 1334, 0)
    assert second.layers["a"] == (1333, 2666, 0)
    assert second.layers["b"] == (0, 0, 0)


def test_presets_and_sizes_name_abstract_spaces() -> None:
    assert [len(parse_space(name).decisions) for name in PRESETS] == [48, 48, 48, 48, 32, 32, 32]
    assert parse_space("3x7").size == 343
    for wrong in ("3x", "x3", "0x3", "nlp.c9", "3x3 "):
        with pytest.raises(InputError, match="a space must be BLOCKSxOPTIONS, such as 48x72, or a preset"):
            parse_space(wrong)


def test_spacing_lets_a_pipeline_run_without_waiting() -> None:
    space = AbstractSpace(16, 24)

    def bubble(sampler: Any) -> float:
        scenario = Scenario(lambda: space.subnets(sampler, 0), 200, 1, None, ())
        return scenario.plan(CSP(), Layout(8)).bubble

    assert bubble(lambda: SpacedSampler(8)) < 0.05 < 0.4 < bubble(UniformSampler)


def test_the_published_figures_hold_for_one_seed_of_the_smallest_space() -> None:
    """All seven spaces and ten seeds are in benchmarks/schedules.py; the table is in docs/schedules.md."""
    space = parse_space("cv.c3")
    for microbatches, sampler, most in ((1, UniformSampler, 0.84), (8, UniformSampler, 0.39)):
        scenario = Scenario(lambda sampler=sampler: space.subnets(sampler, 0), 200, microbatches, None, ())
        assert scenario.plan(CSP(), Layout(8)).bubble < most
    plain = Scenario(lambda: space.subnets(UniformSampler, 0), 60, 8, None, ()).plan(GPipe(), Layout(8))
    assert plain.bubble == pytest.approx(7 / 15)
