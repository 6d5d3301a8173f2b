"""The context of a run: every part of a run is made once in a process, and handed on."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TINY, TinySpace, TinyTask

import naspipe
from naspipe import Decision, Sampler, SearchSpace, Splits, Supernet, registry
from naspipe.errors import ConfigError, NaspipeWarning
from naspipe.records import Direction
from naspipe.training import planning
from naspipe.training.context import RunContext
from naspipe.verification.comparison import Comparison
from naspipe.verification.equality import verify
from naspipe_strategies.random_search import RandomStrategy

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


class NotesStarts(RandomStrategy):
    """A strategy that notes each space that it is started for."""

    def __init__(self) -> None:
        super().__init__()
        self.spaces: list[SearchSpace] = []

    def start(self, space: SearchSpace, directions: Sequence[Direction], seed: int) -> None:
        self.spaces.append(space)
        super().start(space, directions, seed)


def test_a_strategy_serves_one_search_and_is_started_again_only_for_constraints() -> None:
    config = {**TINY, "search": {**TINY["search"], "strategy": {"name": "test_context:NotesStarts"}}}
    context = RunContext.load(config)
    space, smaller = context.components.space, TinySpace()
    first, second, constrained = (context.take_strategy(found) for found in (space, space, smaller))
    assert first is context.components.strategy
    assert len({id(strategy) for strategy in (constrained, first, second)}) == 3
    again = RunContext.load(config)
    narrowed = again.take_strategy(smaller)
    assert narrowed is again.components.strategy
    spaces = [(first, [space]), (second, [space]), (constrained, [smaller])]
    for strategy, found in (*spaces, (narrowed, [again.components.space, smaller])):
        assert isinstance(strategy, NotesStarts)
        assert strategy.spaces == found


class Uneven(TinySpace):
    """The last decision has an option more than the others."""

    def __init__(self) -> None:
        super().__init__()
        options = ("conv1", "conv3", (3, 2), "skip", (3, 4))
        SearchSpace.__init__(self, [*self.decisions[:-1], Decision("op2", options)])


def with_sampler(context: RunContext, name: str, **parameters: Any) -> RunContext:
    section = context.config.sampler.model_validate({"name": name, **parameters})
    return context.with_config(context.config.model_copy(update={"sampler": section}))


def test_another_sampler_is_checked_as_the_first_one_was() -> None:
    context = RunContext.load({**TINY, "space": {"name": "test_context:Uneven"}})
    with pytest.warns(NaspipeWarning, match="is capped for 2 of 3 decisions"):
        with_sampler(context, "spaced", distance=3)
    with pytest.raises(ConfigError, match=r"sampler: .*distance"):
        with_sampler(context, "spaced", distance=9)
    executor = context.config.executor.model_copy(update={"name": "gpipe", "options": {"bulk": 4}})
    with pytest.raises(ConfigError, match=r"training\.delay: must not be set, but is 2"):
        context.with_config(context.config.model_copy(update={"executor": executor}))
