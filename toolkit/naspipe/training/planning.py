"""From a run's plug-ins to a plan: the layout, the subnets that the sampler draws, and their costs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from naspipe.config.schema import RunConfig
from naspipe.errors import InputError
from naspipe.pipeline.costs import CostTable, scaled_table
from naspipe.pipeline.drain import DrainRule, drain_before, never_drain
from naspipe.pipeline.partition import Cuts
from naspipe.pipeline.plan import Plan
from naspipe.pipeline.planner import Planner
from naspipe.pipeline.scenario import Layout, Scenario
from naspipe.pipeline.subnet import SubnetShape, UsedLayer
from naspipe.space import Architecture
from naspipe.space.sampler import Sampler
from naspipe.supernet.flops import count_flops
from naspipe.supernet.meta import to_meta
from naspipe.supernet.supernet import Supernet
from naspipe.tasks.data import EpochOrder, Splits, split_batch
from naspipe.training.components import Components, start_again

FLOPS, PROFILE = "flops", "profile"
"""Values of ``executor.costs``: costs are counted, or measured."""


@dataclass(frozen=True)
class Planning:
    """Makes the plans of a configuration.

    Attributes:
        config: The configuration.
        components: Its plug-ins. The sampler is started anew for every plan, so one plan is made at a time.
        supernet: Its supernet, on the meta device.
        costs: The costs of its blocks.
    """

    config: RunConfig
    components: Components
    supernet: Supernet
    costs: CostTable

    def scenario(
        self, count: int | None = None, microbatches: int | None = None, sampler: Sampler | None = None
    ) -> Scenario:
        """Return the subnets that a run would train.

        Args:
            count: Number of subnets; by default the configuration's.
            microbatches: Micro-batches; by default the configuration's.
            sampler: Draws the subnets; by default the configuration's sampler.
        """
        training = self.config.training
        chosen = self.components.sampler if sampler is None else sampler
        return Scenario(
            draw=lambda: self._draw(chosen),
            count=training.subnets if count is None else count,
            microbatches=training.microbatches if microbatches is None else microbatches,
            delay=training.delay,
            always_active=tuple(layer.block for layer in self.supernet.layers() if not layer.strict),
        )

    @cached_property
    def _own_scenario(self) -> Scenario:
        """The scenario of the run itself; it keeps the expected costs."""
        return self.scenario()

    def _draw(self, sampler: Sampler) -> Iterator[SubnetShape]:
        self.start(sampler)
        for index in itertools.count():
            yield self.describe(sampler.draw(index))

    def start(self, sampler: Sampler) -> None:
        """Start a sampler for the run's space and seed."""
        start_again(sampler, self.components.space, self.config.seed)

    def describe(self, architecture: Architecture) -> SubnetShape:
        """Return the layers and costs of an architecture, for the planner."""
        used = self.supernet.used_layers(architecture)
        return self.costs.describe([[UsedLayer(layer.name, layer.strict) for layer in row] for row in used])

    def layer_bytes(self) -> dict[tuple[int, str], int]:
        """Return the size of every layer's parameters, by block and name."""
        return {
            (layer.block, layer.name): sum(p.numel() * p.element_size() for p in layer.parameters.values())
            for layer in self.supernet.layers()
        }

    @property
    def layout(self) -> Layout:
        """The configuration's layout."""
        section = self.config.executor
        return Layout(section.stages, section.segments, section.partition, section.window)

    @property
    def cuts(self) -> Cuts:
        """The partition that all subnets share.

        Raises:
            InputError: There are more stages than blocks, or each subnet would have a partition of its own.
        """
        return self._own_scenario.cuts(self.layout)

    def planner(
        self, first: int = 0, subnets: Iterator[SubnetShape] | None = None, drains: DrainRule = never_drain
    ) -> Planner:
        """Return a new planner of the run.

        Args:
            first: The first subnet to train.
            subnets: The subnets from the first one on; by default the sampler draws them.
            drains: Says before which subnets the pipeline is drained.

        Raises:
            InputError: There are more stages than blocks, or the executor does not support the layout.
        """
        return self._own_scenario.planner(self.components.executor, self.layout, first, subnets, drains)

    def plan(self, count: int | None = None, drained: Container[int] = ()) -> Plan:
        """Return the plan of a run.

        Args:
            count: Number of subnets; by default the configuration's.
            drained: Subnets before which the pipeline is drained.

        Raises:
            InputError: There are more stages than blocks, or the executor does not support the layout.
        """
        executor, name = self.components.executor, self.config.executor.name
        return self.scenario(count).plan(executor, self.layout, name, drain_before(drained))


def find_costs(config: RunConfig, supernet: Supernet, load: Callable[[], Splits]) -> CostTable:
    """Return the costs of a supernet's blocks, as ``executor.costs`` says.

    Args:
        config: The configuration; ``executor.costs`` is not ``profile``.
        supernet: The supernet, on the meta device.
        load: Returns the task's data; FLOPs are counted for a batch of it.

    Raises:
        InputError: The table does not fit.
    """
    name = config.executor.costs
    assert name != PROFILE, "a profile is measured before anything is planned"
    if name == "uniform":
        return CostTable.uniform(len(supernet))
    if name != FLOPS:
        return read_costs(Path(name), len(supernet))
    batch = EpochOrder(load().train, config.training.batch_size, config.seed, "train").batch(0)
    inputs = split_batch(batch, config.training.microbatches)[0].inputs
    return scaled_table(count_flops(supernet, to_meta(inputs)).costs())


def read_costs(path: Path, blocks: int) -> CostTable:
    """Read the costs of a supernet's blocks from a table's file.

    Raises:
        InputError: The table does not fit.
    """
    table = CostTable.read(path)
    if len(table.blocks) != blocks:
        raise InputError(
            f"executor.costs: {path} must have an entry for each of the {blocks} blocks, but has {len(table.blocks)}."
        )
    return table
