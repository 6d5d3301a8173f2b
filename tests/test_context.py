"""The context of a run: every part of a run is made once in a process, and handed on."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TINY, TinySpace, TinyTask

import naspipe
from naspipe import Sampler, Splits, Supernet, registry
from naspipe.training import planning
from naspipe.training.context import RunContext
from naspipe.verification.comparison import Comparison
from naspipe.verification.equality import verify

PLUGINS = ("space", "task", "sampler", "strategy", "executor", "objective")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what is constructed, loaded, counted and built."""
    found: Counter[str] = Counter()

    def counted(cls: type, name: str, count: Callable[[Any], str]) -> None:
        real = getattr(cls, name)

        @functools.wraps(real)
        def call(self: Any, *arguments: Any, **more: Any) -> Any:
            result = real(self, *arguments, **more)
            found[count(self)] += 1
            return result

        monkeypatch.setattr(cls, name, call)

    for known, name in (
        (registry.spaces, TINY["space"]["name"]),
        (registry.samplers, TINY["sampler"]["name"]),
        (registry.strategies, TINY["search"]["strategy"]["name"]),
        (registry.executors, "csp"),
    ):
        kind = known.kind
        counted(known.get(name), "__init__", lambda plugin, kind=kind: kind)
    counted(TinyTask, "load", lambda task: "data")
    counted(Supernet, "__init__", lambda net: "meta supernet" if next(net.parameters()).is_meta else "supernet")
    flops = planning.count_flops

    def count_flops(*arguments: Any) -> Any:
        found["flops"] += 1
        return flops(*arguments)

    monkeypatch.setattr(planning, "count_flops", count_flops)
    return found


def test_a_run_makes_everything_once(made: Counter[str], tmp_path: Path) -> None:
    executor = {"name": "csp", "stages": 2, "costs": "flops"}
    naspipe.run({**TINY, "executor": executor, "retrain": {**TINY["retrain"], "init": "finetune"}}, tmp_path / "run")
    # The second supernet is the trained one, read back from its file for search and retraining.
    assert made == Counter(
        {
            "space": 1,
            "sampler": 1,
            "strategy": 1,
            "executor": 1,
            "data": 1,
            "meta supernet": 1,
            "supernet": 2,
            "flops": 1,
        }
    )


def test_trainings_that_are_compared_share_what_they_have_in_common(made: Counter[str]) -> None:
    config = {**TINY, "executor": {"name": "csp", "stages": 2, "costs": "flops"}}
    context = RunContext.load(config)
    assert all(verdict.kept for verdict in verify(context, ["csp"], [1, 2], ["in-process"], subnets=4))
    rows = list(Comparison(context, ["csp"], ["uniform"], [1, 2], "in-process", 4).run())
    assert len(rows) == 2
    assert {name: made[name] for name in ("space", "data", "meta supernet", "flops", "strategy")} == dict.fromkeys(
        ("space", "data", "meta supernet", "flops", "strategy"), 1
    )


def test_a_sampler_serves_one_plan_after_another() -> None:
    """What a training draws is what its plan has drawn, though one object draws for both."""
    context = RunContext.load(TINY)
    first = context.planning.plan(count=12).subnets
    assert context.planning.plan(count=12).subnets == first


def test_data_is_loaded_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[int] = []
    load = TinyTask.load

    def counted(task: TinyTask, seed: int) -> Splits:
        loaded.append(seed)
        return load(task, seed)

    monkeypatch.setattr(TinyTask, "load", counted)
    context = RunContext.load(TINY)
    assert loaded == []
    assert context.splits is context.splits
    assert loaded == [TINY["seed"]]
    # A context with another layout shares it.
    other = context.with_config(context.config.model_copy(update={"sampler": context.config.sampler}))
    assert other.splits is context.splits
    assert other.components.sampler is context.components.sampler
    assert isinstance(other.components.sampler, Sampler)
    assert isinstance(other.components.space, TinySpace)
    assert torch.device("meta") in {parameter.device for parameter in other.meta_supernet.parameters()}
