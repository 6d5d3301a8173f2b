"""Plan: the one description of a schedule, which is simulated, validated, drawn and executed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from naspipe.pipeline.action import Kind, PlannedAction
from naspipe.pipeline.bound import Bound
from naspipe.pipeline.contract import Contract
from naspipe.pipeline.partition import Cuts
from naspipe.pipeline.parts import PipelineParts
from naspipe.pipeline.planner import Planner
from naspipe.pipeline.subnet import LayerKey, SubnetShape, UsedLayer


class Message(NamedTuple):
    """A message from one stage to another.

    Attributes:
        action: Text of the action whose result the message carries.
        source: The stage that sends it.
        target: The stage that receives it.
    """

    action: str
    source: int
    target: int


class PlannedSubnet(NamedTuple):
    """A subnet of a plan.

    Attributes:
        layers: For every block the layers with parameters that the subnet uses.
        cuts: Its partition into parts.
    """

    layers: Sequence[Sequence[UsedLayer]]
    cuts: Cuts


@dataclass(frozen=True)
class Plan:
    """A schedule of some subnets on some stages.

    Attributes:
        contract: The contract that the plan keeps.
        stages: Pipeline stages.
        segments: Segments of each stage.
        microbatches: Micro-batches of each batch.
        delay: The delay D of always-active layers; None if there are none, or the contract has no delay.
        subnets: The subnets, in order.
        actions: For every stage its actions in order.
        messages: The messages; the number of a message is its index.
        bound: Lower bound on the makespan of any plan with this contract, in ticks; None if not known.
        executor: Name of the executor that planned it; empty if not known.
        versions: In a trace, for every stage and every action, the versions that the action saw as (block, layer,
            version); for an update, the versions before it. None if nothing has been recorded.
    """

    contract: Contract
    stages: int
    segments: int
    microbatches: int
    delay: int | None
    subnets: tuple[PlannedSubnet, ...]
    actions: tuple[tuple[PlannedAction, ...], ...]
    messages: tuple[Message, ...]
    bound: int | None = None
    executor: str = ""
    versions: tuple[tuple[tuple[tuple[int, str, int], ...], ...], ...] | None = None

    @property
    def parts(self) -> PipelineParts:
        """The segments of all stages."""
        return PipelineParts(self.stages, self.segments)

    @property
    def makespan(self) -> int:
        """The tick at which the last action ends."""
        return max((planned.end for stage in self.actions for planned in stage), default=0)

    @property
    def work(self) -> int:
        """The ticks that the stages are busy, summed over all stages."""
        return sum(map(self.busy, range(self.stages)))

    @property
    def bubble(self) -> float:
        """The fraction of the stages' time in which they are idle, from 0 to 1."""
        return bubble(self.work, self.stages, self.makespan)

    def busy(self, stage: int) -> int:
        """Return the ticks that a stage is busy."""
        return sum(planned.end - planned.start for planned in self.actions[stage])

    def idle(self, stage: int) -> float:
        """Return the fraction of the makespan in which a stage is idle, from 0 to 1."""
        return bubble(self.busy(stage), 1, self.makespan)

    def layers_on(self, subnet: int, part: int) -> Iterator[tuple[LayerKey, bool]]:
        """Yield the layers that a subnet uses on a part, and whether they follow the delay."""
        layers, cuts = self.subnets[subnet]
        for block in range(cuts[part], cuts[part + 1]):
            for name, strict in layers[block]:
                yield (block, name), not strict and self.delay is not None

    def in_time(self) -> Iterator[PlannedAction]:
        """Yield the actions of all stages by their start, updates that take no time first."""
        rows = itertools.chain.from_iterable(self.actions)
        yield from sorted(
            rows, key=lambda p: (p.start, p.action.kind is not Kind.UPDATE or p.end > p.start, p.action.stage)
        )


def bubble(work: int, stages: int, makespan: int) -> float:
    """Return the fraction of the stages' time in which they are idle, from 0 to 1; 0 if there is no time.

    Args:
        work: Ticks that the stages are busy, summed over all stages.
        stages: Pipeline stages.
        makespan: Ticks from the start to the end.
    """
    time = stages * makespan
    return 1 - work / time if time else 0.0


def make_plan(planner: Planner, subnets: Iterable[SubnetShape], executor: str = "") -> Plan:
    """Run a planner to its end and return the plan.

    Args:
        planner: A planner that has not run.
        subnets: The subnets that the planner was given, from the first on.
        executor: Name of the planner's executor.

    Raises:
        NaspipeError: The policy chose an action that is not ready, or chose none when nothing else can happen.
    """
    shape, parts = planner.shape, planner.shape.parts
    actions: list[list[PlannedAction]] = [[] for _ in range(shape.stages)]
    messages: list[Message] = []
    for planned in planner.run():
        action = planned.action
        actions[action.stage].append(planned)
        if planned.message is not None:
            assert planned.message == len(messages)
            target = parts.target(action)
            assert target is not None
            messages.append(Message(str(action), action.stage, parts.stage(target)))
    bound = Bound(planner.contract, shape.microbatches, shape.delay)
    kept = []
    for subnet in itertools.islice(subnets, shape.subnets):
        bound.add(subnet)
        kept.append(PlannedSubnet(subnet.layers, planner.partition(subnet)))
    return Plan(
        contract=planner.contract,
        stages=shape.stages,
        segments=shape.segments,
        microbatches=shape.microbatches,
        delay=shape.delay,
        subnets=tuple(kept),
        actions=tuple(tuple(row) for row in actions),
        messages=tuple(messages),
        bound=bound.value(shape.stages),
        executor=executor,
    )
