"""The checks of an executor."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

from naspipe.keys import draw_index, keyed_random
from naspipe.pipeline.action import Action
from naspipe.pipeline.contract import Contract
from naspipe.pipeline.executor import Executor, PipelineShape, StageView
from naspipe.pipeline.plan import Plan
from naspipe.pipeline.planfile import plan_to_json
from naspipe.pipeline.scenario import Layout, Scenario
from naspipe.pipeline.subnet import SubnetShape, UsedLayer
from naspipe.pipeline.validator import explain, find_violations
from naspipe.testing.check import CheckList, ConformanceError, require
from naspipe.testing.elsewhere import ask_elsewhere
from naspipe.testing.subject import SEED, Subject
from naspipe.testing.watching import (
    clocks_watched,
    global_generators_untouched,
    kept_generators,
    stir_generators,
)

SCENARIOS = 60
"""Number of random scenarios that are planned."""

STAGES = (1, 2, 3)
"""The numbers of stages in real trainings."""

checks = CheckList()

Answer = TypeVar("Answer")


def scenarios(executor: Executor, count: int = SCENARIOS) -> Iterator[tuple[Scenario, Layout]]:
    """Yield random scenarios for an executor: layers, costs, micro-batches, stages and delay."""
    for number in range(count):
        uniform = keyed_random(SEED, "scenario", number)
        stages = 1 + draw_index(uniform, 4)
        segments = 1 + draw_index(uniform, 2) if executor.composes_segments else 1
        blocks = stages * segments + draw_index(uniform, 4)
        always = tuple(block for block in range(blocks) if uniform.random() < 0.3)
        subnets = [_subnet(uniform, blocks, always) for _ in range(1 + draw_index(uniform, 14))]
        microbatches = 1 + draw_index(uniform, 4)
        shape = PipelineShape(stages, microbatches, len(subnets), segments)
        delay = draw_index(uniform, 6) if executor.contract(shape).allows_delay else None
        layout = Layout(stages, segments, latency=draw_index(uniform, 4))
        draw = functools.partial(iter, subnets)
        yield Scenario(draw, len(subnets), microbatches, delay, always), layout


def _subnet(uniform: random.Random, blocks: int, always: Sequence[int]) -> SubnetShape:
    def costs(least: int, count: int) -> list[int]:
        return [least + draw_index(uniform, count) for _ in range(blocks)]

    layers = []
    for block in range(blocks):
        names = {draw_index(uniform, 4) for _ in range(draw_index(uniform, 3))}
        row = [UsedLayer(str(name), True) for name in sorted(names)]
        layers.append([*row, UsedLayer("always_active", False)] if block in always else row)
    return SubnetShape(layers, costs(1, 9), costs(1, 9), costs(0, 3))


def _plan(executor: Executor, scenario: Scenario, layout: Layout, number: int) -> Plan:
    try:
        return scenario.plan(executor, layout)
    except Exception as error:
        raise ConformanceError(f"{_where(scenario, layout, number)} cannot be planned: {error}") from error


def _where(scenario: Scenario, layout: Layout, number: int) -> str:
    return (
        f"scenario {number} ({scenario.count} subnets, {scenario.microbatches} micro-batches, {layout.stages} "
        f"stages of {layout.segments} segments, delay {scenario.delay})"
    )


@checks()
def plans_keep_the_contract(subject: Subject) -> None:
    """The validator finds the plans of random scenarios complete, and within the contract."""
    executor: Executor = subject.make()
    for number, (scenario, layout) in enumerate(scenarios(executor)):
        plan = _plan(subject.make(), scenario, layout, number)
        for violation in find_violations(plan):
            raise ConformanceError(
                f"the plan of {_where(scenario, layout, number)} must keep {plan.contract}, but breaks it: "
                f"{explain(plan, violation)}"
            )


class _Twice(Executor):
    """An executor that asks another one everything twice, and compares the answers."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self.composes_segments = inner.composes_segments

    def contract(self, shape: PipelineShape) -> Contract:
        return self._same("contract", self._inner.contract(shape), self._inner.contract(shape))

    def window(self, shape: PipelineShape) -> int:
        return self._same("window", self._inner.window(shape), self._inner.window(shape))

    def choose(self, ready: Sequence[Action], view: StageView) -> Action | None:
        one = self._inner.choose(list(ready), view)
        return self._same(f"choose, with {len(ready)} ready actions,", one, self._inner.choose(list(ready), view))

    def _same(self, what: str, one: Answer, other: Answer) -> Answer:
        require(
            one == other,
            f"an executor must be a function of what it sees, but {what} first returned {one} and then {other}. "
            "It must keep no memory of earlier choices, read no clock and draw nothing.",
        )
        return one


@checks("plans_keep_the_contract")
def choices_follow_from_what_is_seen(subject: Subject) -> None:
    """Asked twice, an executor answers the same; it changes neither the list of ready actions nor itself."""
    for number, (scenario, layout) in enumerate(scenarios(subject.make(), SCENARIOS // 3)):
        _plan(_Twice(subject.make()), scenario, layout, number)


@checks("choices_follow_from_what_is_seen")
def planning_again_gives_the_same(subject: Subject) -> None:
    """The same object, and a new one, plan a scenario as before, also after others."""
    executor: Executor = subject.make()
    drawn = list(scenarios(executor, SCENARIOS // 3))
    first = [plan_to_json(_plan(executor, *one, number)) for number, one in enumerate(drawn)]
    for what, other in (("the same object", executor), ("a new object", subject.make())):
        for number, (one, expected) in enumerate(zip(drawn, first, strict=True)):
            require(
                plan_to_json(_plan(other, *one, number)) == expected,
                f"{what} must plan the same again, but the plan of {_where(*one, number)} differs.",
            )


@checks("plans_keep_the_contract")
def no_clock_and_no_generator_is_used(subject: Subject) -> None:
    """Planning reads no clock and draws from no global generator."""
    with kept_generators(), clocks_watched() as read:
        for number in (1, 2):
            stir_generators(number)
            with global_generators_untouched("planning"):
                for index, one in enumerate(scenarios(subject.make(), SCENARIOS // 6)):
                    _plan(subject.make(), *one, index)
    clocks = ", ".join(dict.fromkeys(read))
    require(not read, f"planning must read no clock, since every process plans for itself, but it used {clocks}.")


def fingerprint(subject: Subject) -> list[str]:
    """Return the plans of some scenarios, as texts."""
    return [
        json.dumps(plan_to_json(_plan(subject.make(), *one, number)))
        for number, one in enumerate(scenarios(subject.make(), 20))
    ]


@checks("planning_again_gives_the_same")
def another_process_plans_the_same(subject: Subject) -> None:
    """Another process, with another hash seed, plans the same."""
    pairs = zip(fingerprint(subject), ask_elsewhere(fingerprint, subject), strict=True)
    for number, (expected, found) in enumerate(pairs):
        require(
            expected == found,
            f"all processes must plan the same, but the plan of scenario {number} differs in another one. Does it "
            "depend on the order of a set, or on hash()?",
        )


@checks("plans_keep_the_contract")
def trainings_give_what_the_contract_promises(subject: Subject) -> None:
    """Real trainings on 1, 2 and 3 stages keep the contract, and equal sequential training if it promises that."""
    # Imported here, so that the other checks need no torch.
    from naspipe.testing.chain import WIDTH, Chain
    from naspipe.testing.noise import Noise
    from naspipe.training.context import RunContext
    from naspipe.verification.equality import verify

    executor: Executor = subject.make()
    allows_delay = all(executor.contract(PipelineShape(s, 2, 12)).allows_delay for s in STAGES)
    config = RunContext.load(
        {
            "seed": SEED,
            "space": {"name": f"{Chain.__module__}:{Chain.__qualname__}"},
            "task": {"name": f"{Noise.__module__}:{Noise.__qualname__}", "shape": [WIDTH]},
            "training": {
                "subnets": 12, "batch_size": 8, "microbatches": 2, "delay": 2 if allows_delay else None,
                "optimizer": {"name": "SGD", "lr": 0.01, "momentum": 0.9},
            },
            "search": {"strategy": {"name": "random"}, "objectives": ["loss"]},
        }
    )  # fmt: skip
    for check in verify(config, [_written(subject)], STAGES, ["in-process"]):
        where = f"{check.executor} on {check.stages} stages"
        for violation in check.violations:
            raise ConformanceError(f"{where} must keep its contract, but: {violation.message}")
        require(
            not check.difference, f"{where} must give the bits of {check.reference}, but differs: {check.difference}."
        )


def _written(subject: Subject) -> str:
    """Return the executor as an argument of a command: name:key=value."""
    options = [f"{key}={json.dumps(value)}" for key, value in subject.parameters.items()]
    return ":".join([subject.reference, *options])
