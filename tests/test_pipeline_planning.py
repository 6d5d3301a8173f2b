"""From a configuration to a plan, a forecast and a simulation, as the commands show them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import Command, TinySpace

from naspipe import Supernet
from naspipe.errors import InputError, NaspipeWarning
from naspipe.pipeline.planfile import read_plan
from naspipe.pipeline.simulation import COLUMNS, Simulation, parse_executor
from naspipe.pipeline.validator import find_violations
from naspipe.preflight.forecast import conflict_chance, forecast_speedups
from naspipe.preflight.layout import warn_of_idle_stages
from naspipe.supernet.flops import count_flops
from naspipe.supernet.meta import build_on_meta, to_meta
from naspipe.training.components import build_components
from naspipe.training.context import RunContext, as_config
from naspipe.training.planning import Planning
from naspipe_spaces.nasbench201 import NASBench201


@pytest.fixture
def config(tmp_path: Path, tiny: dict[str, Any]) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny))
    return path


def planning(tiny: dict[str, Any], **executor: Any) -> Planning:
    loaded = as_config({**tiny, "executor": {"name": "csp", **executor}})
    return RunContext.load(loaded).planning


def test_a_runs_plan_has_its_layers_and_keeps_its_contract(tiny: dict[str, Any]) -> None:
    plan = planning(tiny, stages=3, segments=1).plan(count=20)
    assert find_violations(plan) == []
    assert len(plan.subnets) == 20
    assert plan.delay == 2
    layers = plan.subnets[0].layers
    assert [tuple(layer) for layer in layers[0]] == [("always_active", False)]
    assert all(len(row) <= 1 and all(layer.strict for layer in row) for row in layers[1:4])


def test_planning_draws_what_training_draws(tiny: dict[str, Any]) -> None:
    one = planning(tiny)
    sampler = build_components(one.config).sampler
    supernet = Supernet(TinySpace(), 0)
    for index, subnet in enumerate(one.scenario(10).subnets()):
        used = supernet.used_layers(sampler.draw(index))
        assert [[layer.name for layer in row] for row in subnet.layers] == [
            [layer.name for layer in row] for row in used
        ]


def test_the_supernet_is_planned_for_without_memory(tiny: dict[str, Any]) -> None:
    one = planning(tiny)
    assert all(parameter.is_meta for parameter in one.supernet.parameters())
    real = Supernet(TinySpace(), 0)
    assert one.layer_bytes() == {(layer.block, layer.name): 4 * layer.num_parameters for layer in real.layers()}


def test_a_space_that_computes_while_it_is_built_is_planned_for_as_well() -> None:
    class Computing(TinySpace):
        def blocks(self) -> Any:
            assert float(torch.linspace(0, 1, 3)[1]) == 0.5
            yield from super().blocks()

    assert all(parameter.is_meta for parameter in build_on_meta(Computing(), 0).parameters())


def test_flops_are_those_of_the_extracted_subnet() -> None:
    space = NASBench201(channels=4)
    supernet = build_on_meta(space, 0)
    inputs = to_meta(torch.zeros(2, 1, 8, 8))
    flops = count_flops(supernet, inputs)
    text = "|nor_conv_3x3~0|+|nor_conv_1x1~0|none~1|+|skip_connect~0|avg_pool_3x3~1|nor_conv_3x3~2|"
    architecture = space.parse(text)
    total = sum(base for base, _ in flops.costs())
    for index, row in enumerate(supernet.used_layers(architecture)):
        total += sum(flops.layers[index][layer.name] for layer in row if layer.strict)
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        supernet.extract(architecture)(inputs)
    assert total == counter.get_total_flops() > 0


def test_flops_cost_more_where_more_is_computed(tiny: dict[str, Any]) -> None:
    costs = planning(tiny, costs="flops").costs
    layers = costs.blocks[1].layers
    assert layers["conv3"][0] > layers["conv1"][0] > 0
    assert layers["conv3"][1] == 2 * layers["conv3"][0]


def test_a_table_of_costs_may_come_from_a_file(tiny: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    planning(tiny, costs="flops").costs.write(path)
    again = planning(tiny, costs=str(path))
    assert again.costs == planning(tiny, costs="flops").costs
    path.write_text('{"blocks": [{"base": [1, 1, 0]}]}')
    with pytest.raises(InputError, match="an entry for each of the 5 blocks, but has 1"):
        planning(tiny, costs=str(path))


def test_a_delay_smaller_than_the_stages_need_is_warned_of_with_its_cost(tiny: dict[str, Any]) -> None:
    message = (
        r"training.delay is 2, but 5 stages need 4 with 1 micro-batch: .*at least about 0.40. Raise training.delay"
    )
    with pytest.warns(NaspipeWarning, match=message):
        warn_of_idle_stages(planning(tiny, stages=5))


def test_a_window_smaller_than_the_stages_need_is_warned_of_with_its_cost(tiny: dict[str, Any]) -> None:
    one = planning(tiny, stages=3, partition=[1, 2, 2], window=1)
    message = r"executor.window is 1, but 3 stages need 3 subnets .*about 0.67. Raise executor.window, which does not"
    with pytest.warns(NaspipeWarning, match=message):
        warn_of_idle_stages(one)
    plan = one.plan()
    assert plan.bubble == pytest.approx(0.67, abs=0.01)
    tiny["training"]["delay"] = 1
    with pytest.warns(NaspipeWarning, match=r"delay is 1, .* need 4; executor.window is 1, .* need 5 .* and executor"):
        warn_of_idle_stages(planning(tiny, stages=5, window=1))


def test_a_fixed_pattern_and_what_is_enough_are_not_warned_of(tiny: dict[str, Any]) -> None:
    warn_of_idle_stages(planning(tiny, stages=3, partition=[1, 2, 2], window=3))
    warn_of_idle_stages(planning(tiny, stages=1, window=1))
    tiny["training"]["delay"] = 0
    for name in ("sequential", "gpipe", "one_f_one_b"):
        warn_of_idle_stages(planning(tiny, name=name, stages=4))


def test_conflicts_are_as_likely_as_counting_says(tiny: dict[str, Any]) -> None:
    # Three decisions, three of four options with parameters: 1 - (1 - 3/16)^3 = 0.46.
    assert conflict_chance(planning(tiny)) == pytest.approx(0.46, abs=0.07)


def test_the_forecast_knows_what_helps(tiny: dict[str, Any]) -> None:
    rows = {(row.sampler, row.microbatches): row.speedups for row in forecast_speedups(planning(tiny))}
    assert len(rows) == 9
    for speedups in rows.values():
        two, four, eight, sixteen = speedups
        assert two is not None
        assert four is not None
        assert 1 <= two <= 2
        assert four <= 4
        # Five blocks fill four stages, not eight.
        assert eight is None
        assert sixteen is None
    assert rows["spaced", 1][1] > rows["uniform", 1][1]
    assert rows["uniform", 8][1] > rows["uniform", 1][1]


def test_plan_prints_grid_figures_and_verdict_and_writes_files(command: Command, config: Path, tmp_path: Path) -> None:
    files = {name: tmp_path / f"plan.{name}" for name in ("json", "html", "trace")}
    code, text, _ = command(
        "plan", config, "--stages", 3, "--subnets", 6, "--set", "executor.name=csp",
        "--json", files["json"], "--html", files["html"], "--trace", files["trace"],
    )  # fmt: skip
    assert code == 0
    assert sum(line.startswith("stage ") for line in text.splitlines()) == 3
    for word in ("F0", "Makespan", "times the bound", "Bubble", "Activation", "Versions", "MiB"):
        assert word in text
    assert "Contract   causal: kept" in text
    assert all(path.stat().st_size > 100 for path in files.values())
    plan = read_plan(files["json"])
    assert plan.stages == 3
    code, text, _ = command("plan", files["json"])
    assert code == 0
    assert "Contract   causal: kept" in text


def test_plan_judges_a_plan_of_ones_own_and_ends_with_1(command: Command, config: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    assert command("plan", config, "--stages", 2, "--subnets", 5, "--json", path)[0] == 0
    data = json.loads(path.read_text())
    data["actions"][0][0], data["actions"][0][2] = data["actions"][0][2], data["actions"][0][0]
    path.write_text(json.dumps(data))
    code, text, _ = command("plan", path)
    assert code == 1
    assert "Contract   causal: broken" in text
    assert ">>" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data["subnets"].pop(), "must be of one of the 4 subnets, but there is no 4"),
        (lambda data: data["actions"][0].pop(0), "must occur once, but is missing"),
        (lambda data: data["actions"][1].append(data["actions"][1][0]), "must occur once, but stands at place"),
        (lambda data: data["actions"][0].reverse(), "must come before"),
    ],
    ids=["subnet", "missing", "repeated", "reversed"],
)
def test_plan_judges_and_draws_a_malformed_plan_without_a_crash(
    command: Command, config: Path, tmp_path: Path, change: Callable[[Any], None], message: str
) -> None:
    path, page, trace = tmp_path / "plan.json", tmp_path / "plan.html", tmp_path / "plan.trace"
    assert command("plan", config, "--stages", 2, "--subnets", 5, "--json", path)[0] == 0
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    code, text, errors = command("plan", path, "--html", page, "--trace", trace)
    assert code == 1
    assert message in text
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--stages", 9), "there are 9 stages for 5 blocks. Use at most 5 stages"),
        (("--set", "executor={name: pipedream}"), "must not be set, but is 2: executor 'pipedream'"),
        (("--set", "executor.costs=none.json"), "none.json: cannot be read"),
        (("--set", "executor.partition=[1, 1]", "--stages", 2), "must give each of the 2 stages"),
        (("--set", "executor.segments=2"), "runs each stage in one segment"),
    ],
)
def test_plan_refuses_what_does_not_fit(
    command: Command, config: Path, arguments: tuple[object, ...], message: str
) -> None:
    code, _, errors = command("plan", config, *arguments)
    assert code == 2
    assert message in errors
    assert "Traceback" not in errors


def test_simulate_prints_means_and_writes_a_row_for_each_seed(command: Command, tmp_path: Path) -> None:
    rows_file, page = tmp_path / "rows.csv", tmp_path / "figure.html"
    code, text, _ = command(
        "simulate", "--space", "12x6,8x4", "--stages", "2,4", "--executors", "csp,gpipe:bulk=2",
        "--samplers", "uniform,spaced", "--seeds", 2, "--subnets", 20, "--csv", rows_file, "--html", page,
    )  # fmt: skip
    assert code == 0
    assert text.splitlines()[0].split()[:3] == ["space", "executor", "sampler"]
    rows = list(csv.DictReader(rows_file.read_text().splitlines()))
    assert len(rows) == 2 * 2 * 2 * 2 * 2
    assert list(rows[0]) == list(COLUMNS)
    for row in rows:
        assert int(row["makespan"]) >= int(row["bound"])
        assert 0 <= float(row["bubble"]) < 1
        assert 1 <= int(row["distinct"]) <= 20
    # ceil(stages / micro-batches), and two less than the options at most.
    assert {(r["space"], r["stages"], r["distance"]) for r in rows if r["sampler"] == "spaced"} == {
        ("12x6", "2", "2"), ("12x6", "4", "4"), ("8x4", "2", "2"), ("8x4", "4", "2"),
    }  # fmt: skip
    assert page.stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--space", "48y72"), "a space must be BLOCKSxOPTIONS"),
        (("--executors", "cps"), "Did you mean 'csp'?"),
        (("--executors", "gpipe:bulk=0"), "executor 'gpipe:bulk=0' must have options that it takes (bulk)"),
        (("--executors", "csp:bulk=2"), "must have options that it takes (priority)"),
        (("--samplers", "spaced", "--distance", "99"), "at most the number of a decision's options less two"),
        (("--stages", "4,zero"), "--stages must be integers of at least 1, but got 'zero'"),
        (("--stages", ","), "--stages must be a list such as a,b,c"),
        (("--space", "4x4", "--stages", "8"), "there are 8 stages for 4 blocks"),
        (("--executors", "gpipe", "--segments", "2"), "runs each stage in one segment"),
        (("--executors", "pipedream", "--delay", "2"), "governs all layers, and delay is 2"),
    ],
)
def test_simulate_refuses_what_does_not_fit_before_it_starts(
    command: Command, arguments: tuple[str, ...], message: str
) -> None:
    code, text, errors = command("simulate", "--seeds", "1", "--subnets", "5", *arguments)
    assert code == 2
    assert message in errors
    assert text == ""


def test_validate_shows_the_forecast(command: Command, config: Path) -> None:
    code, text, _ = command("validate", config)
    assert code == 0
    assert "of random pairs of subnets share a strict layer" in text
    assert "speed-up of csp over one stage, 96 subnets, delay 2" in text
    assert sum(line.split()[:1] == ["spaced"] for line in text.splitlines()) == 3


def test_a_policy_of_ones_own_registers_like_any_plugin() -> None:
    executor = parse_executor("test_pipeline_planner:Stubborn")
    assert type(executor).__name__ == "Stubborn"
    rows = Simulation(["6x3"], ["test_pipeline_planner:Stubborn"], ["uniform"], [1], seeds=1, subnets=3)
    with pytest.raises(Exception, match="executor Stubborn must choose some ready action"):
        list(rows.run())
