"""Measured costs: a table that fits the space, made once and used by every plan of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import TINY, Command

from naspipe import Architecture, Run, Sampler, SearchSpace, registry
from naspipe.errors import InputError, NaspipeWarning
from naspipe.pipeline.costs import CostTable
from naspipe.pipeline.planfile import read_plan
from naspipe.training import profiling
from naspipe.training.context import RunContext, as_config
from naspipe.training.layers import Layer
from naspipe.training.profiling import _fit, profile_costs
from naspipe.verification.equality import verify


def config_with(**executor: Any) -> Any:
    return as_config({**TINY, "executor": {"name": "csp", "stages": 2, "costs": "profile", **executor}})


def test_every_strict_layer_gets_a_measured_cost() -> None:
    context = RunContext.load(config_with())
    table = profile_costs(context)
    supernet = context.meta_supernet
    assert len(table.blocks) == len(supernet)
    for block, layers in zip(table.blocks, supernet.layers_by_block, strict=True):
        assert set(block.layers) == {layer.name for layer in layers.values() if layer.strict}
        assert min(block.base[:2]) >= 1


def test_what_candidates_add_is_told_apart() -> None:
    base, layers = _fit({(): 10.0, ("a",): 15.0, ("b",): 40.0, ("a", "b"): 45.0})
    assert base == pytest.approx(10)
    assert layers == {"a": pytest.approx(5), "b": pytest.approx(30)}


def test_a_run_measures_once_and_keeps_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[CostTable] = []
    real = profiling.profile_costs

    def count(*arguments: Any) -> CostTable:
        measured.append(real(*arguments))
        return measured[-1]

    monkeypatch.setattr(profiling, "profile_costs", count)
    run = Run.create(config_with(), tmp_path / "run").train(trace=True)
    assert len(measured) == 1
    assert CostTable.read(run.folder.training.costs) == measured[0]
    assert Run.open(run.path).config.executor.costs == "profile"
    again = RunContext.load(run.config)
    profiling.measure_costs(again, run.folder.training.costs)
    assert again.costs == measured[0]
    assert len(measured) == 1


def test_measured_costs_change_no_bit(tmp_path: Path) -> None:
    plain = Run.create({**TINY, "executor": {"name": "sequential"}}, tmp_path / "plain").train()
    assert Run.create(config_with(), tmp_path / "measured").train().digest == plain.digest


def test_verification_measures_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = profiling.profile_costs
    monkeypatch.setattr(profiling, "profile_costs", lambda *a: calls.append(1) or real(*a))
    checks = list(verify(config_with(), ["csp"], [1, 2], ["in-process"], subnets=6))
    assert all(check.kept for check in checks)
    assert len(calls) == 1


class OneOnly(Sampler):
    """Draws the first option of everything."""

    def start(self, space: SearchSpace, seed: int) -> None:
        self._space = space

    def draw(self, index: int) -> Architecture:
        return self._space.from_indices([0] * len(self._space.decisions))


def test_layers_that_no_subnet_used_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    context = RunContext.load(config_with())
    monkeypatch.setattr(registry.samplers.get("fair"), "draw", OneOnly.draw)
    monkeypatch.setattr(registry.samplers.get("fair"), "start", OneOnly.start)
    with pytest.warns(NaspipeWarning, match=r"executor\.costs: profile did not meet 6 layers"):
        table = profile_costs(context)
    assert [set(block.layers) for block in table.blocks[1:4]] == [{"conv1"}] * 3


def test_the_plan_command_measures(tmp_path: Path, command: Command) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(config_with().to_yaml())
    code, output, _ = command("plan", path, "--json", tmp_path / "plan.json")
    assert code == 0
    assert "causal: kept" in output
    # In microseconds; uniform costs give some ten ticks a subnet.
    assert read_plan(tmp_path / "plan.json").makespan > 32 * 100


def test_a_profile_digests_no_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Layer, "digest")
    profile_costs(RunContext.load(config_with()))


def test_each_run_of_one_context_keeps_the_table(tmp_path: Path) -> None:
    context = RunContext.load(config_with())
    for name in ("first", "second"):
        run = Run.create(context, tmp_path / name).train()
        assert CostTable.read(run.folder.training.costs) == context.costs


def test_a_kept_table_of_another_space_is_refused(tmp_path: Path) -> None:
    CostTable.uniform(3).write(tmp_path / "costs.json")
    with pytest.raises(InputError, match=r"costs\.json must have an entry for each of the 5 blocks, but has 3"):
        profiling.measure_costs(RunContext.load(config_with()), tmp_path / "costs.json")
