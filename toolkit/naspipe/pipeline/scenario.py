"""Scenario and layout: everything that a plan depends on besides the executor."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from naspipe.errors import InputError
from naspipe.pipeline.drain import DrainRule, never_drain
from naspipe.pipeline.executor import Executor, PipelineShape
from naspipe.pipeline.partition import Cuts, balanced_cuts, explicit_cuts, segment_cuts
from naspipe.pipeline.parts import PipelineParts
from naspipe.pipeline.plan import Plan, make_plan
from naspipe.pipeline.planner import Planner
from naspipe.pipeline.subnet import SubnetShape

EXPECTED_DRAWS = 256
"""Number of subnets whose mean cost estimates the expected cost under the sampler."""

Partition = Literal["static", "balanced"] | list[int]
"""One partition for the run, balanced for the expected cost; one for each subnet; or the blocks of each stage."""


@dataclass(frozen=True)
class Layout:
    """How the blocks are laid out over the stages, and how the stages run.

    Attributes:
        stages: Pipeline stages.
        segments: Segments of each stage.
        partition: Which stage runs which blocks.
        window: Subnets in flight at most, or None: the executor says.
        latency: Ticks that a message takes from stage to stage.
    """

    stages: int
    segments: int = 1
    partition: Partition = "static"
    window: int | None = None
    latency: int = 0

    @property
    def parts(self) -> PipelineParts:
        """The segments of all stages."""
        return PipelineParts(self.stages, self.segments)


@dataclass(frozen=True)
class Scenario:
    """The subnets to train, as the planner sees them.

    Attributes:
        draw: Returns the sequence of subnets from the first on, each time the same.
        count: Number of subnets to train.
        microbatches: Micro-batches of each batch.
        delay: The delay D of always-active layers; None where the contract has none.
        always_active: The blocks that have an always-active layer.
    """

    draw: Callable[[], Iterator[SubnetShape]]
    count: int
    microbatches: int
    delay: int | None
    always_active: tuple[int, ...]

    def subnets(self) -> Iterator[SubnetShape]:
        """Yield the subnets to train, from the first on."""
        return itertools.islice(self.draw(), self.count)

    @cached_property
    def expected_costs(self) -> tuple[int, ...]:
        """Cost of each block, forward and backward, summed over the first subnets."""
        drawn = [
            [f + b for f, b in zip(subnet.forward, subnet.backward, strict=True)]
            for subnet in itertools.islice(self.draw(), min(self.count, EXPECTED_DRAWS))
        ]
        return tuple(map(sum, zip(*drawn, strict=True)))

    def planner(
        self,
        executor: Executor,
        layout: Layout,
        first: int = 0,
        subnets: Iterator[SubnetShape] | None = None,
        drains: DrainRule = never_drain,
    ) -> Planner:
        """Return a planner that has not run yet.

        Args:
            executor: Its policy chooses.
            layout: Stages, segments, partition and window.
            first: The first subnet to train.
            subnets: The subnets from ``first`` on; by default ``draw`` gives them.
            drains: Says when each later subnet may be admitted.

        Raises:
            InputError: There are more stages than blocks, the partition does not fit, or the executor does not
                support the window, the segments or the delay.
        """
        shape = PipelineShape(
            layout.stages,
            self.microbatches,
            self.count,
            layout.segments,
            self.delay if self.always_active else None,
        )
        return Planner(
            executor,
            shape,
            itertools.islice(self.draw(), first, None) if subnets is None else subnets,
            self._partition(layout),
            always_active=self.always_active,
            window=layout.window,
            latency=layout.latency,
            first=first,
            drains=drains,
        )

    def plan(self, executor: Executor, layout: Layout, name: str = "", drains: DrainRule = never_drain) -> Plan:
        """Return the whole plan.

        Args:
            executor: Its policy chooses.
            layout: Stages, segments, partition and window.
            name: Name of the executor in the plan.
            drains: Says when each later subnet may be admitted.

        Raises:
            InputError: As for ``planner``.
            NaspipeError: The policy chose an action that is not ready, or chose none when nothing else can happen.
        """
        return make_plan(self.planner(executor, layout, drains=drains), self.draw(), name)

    def cuts(self, layout: Layout) -> Cuts:
        """Return the partition into parts that all subnets share.

        Raises:
            InputError: The partition does not fit, or each subnet would have its own.
        """
        costs, stages, segments = self.expected_costs, layout.stages, layout.segments
        if layout.partition == "balanced":
            raise InputError(
                "a partition of its own for each subnet moves layers between stages, which can be planned but not "
                "run. Set executor.partition to static, or to the blocks of each stage."
            )
        if layout.partition == "static":
            cuts = balanced_cuts(costs, stages, segments)
        else:
            cuts = explicit_cuts(layout.partition, len(costs), stages)
        return segment_cuts(costs, cuts, segments)

    def _partition(self, layout: Layout) -> Callable[[SubnetShape], Cuts]:
        if layout.partition != "balanced":
            fixed = self.cuts(layout)
            return lambda subnet: fixed
        stages, segments = layout.stages, layout.segments

        def balance(subnet: SubnetShape) -> Cuts:
            own = [f + b for f, b in zip(subnet.forward, subnet.backward, strict=True)]
            return segment_cuts(own, balanced_cuts(own, stages, segments), segments)

        return balance
