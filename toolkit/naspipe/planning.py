"""From a configuration to a plan: layers from the supernet, costs, and the sampler's subnets."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from naspipe import registry
from naspipe.components import Components
from naspipe.config.resolve import plugin_arguments
from naspipe.config.schema import RunConfig
from naspipe.environment import torchrun_processes
from naspipe.errors import InputError, NaspipeWarning, SpaceError
from naspipe.executors.executor import Executor, PipelineShape
from naspipe.pipeline.costs import CostTable, scaled_table
from naspipe.pipeline.gate import Gate, open_gate
from naspipe.pipeline.in_flight import least_bubble, needed_in_flight, stage_costs
from naspipe.pipeline.partition import Cuts
from naspipe.pipeline.plan import Plan
from naspipe.pipeline.planner import Planner
from naspipe.pipeline.scenario import Layout, Scenario
from naspipe.pipeline.subnet import SubnetShape, UsedLayer
from naspipe.search.sampler import Sampler
from naspipe.space import SearchSpace
from naspipe.supernet.flops import count_flops, to_meta
from naspipe.supernet.supernet import Supernet
from naspipe.tasks.data import EpochOrder, Splits, split_batch

PROFILE = "profile"
"""The value of ``executor.costs`` that asks for a measurement."""


@dataclass(frozen=True)
class Planning:
    """What a configuration's plans are made from.

    Attributes:
        config: The configuration.
        components: Its plug-ins.
        supernet: Its supernet, on the meta device.
        costs: What its blocks cost.
    """

    config: RunConfig
    components: Components
    supernet: Supernet
    costs: CostTable

    def scenario(
        self,
        count: int | None = None,
        microbatches: int | None = None,
        make_sampler: Callable[[], Sampler] | None = None,
    ) -> Scenario:
        """Return the subnets that a run would train.

        Args:
            count: Number of subnets; by default the configuration's.
            microbatches: Micro-batches; by default the configuration's.
            make_sampler: Makes a sampler that has not been started; by default the configuration's.
        """
        training = self.config.training
        make = make_sampler or self.make_sampler
        return Scenario(
            draw=lambda: self._draw(make()),
            count=training.subnets if count is None else count,
            microbatches=training.microbatches if microbatches is None else microbatches,
            delay=training.delay,
            always_active=tuple(layer.block for layer in self.supernet.layers() if not layer.strict),
        )

    def make_sampler(self) -> Sampler:
        """Return a new sampler of the configuration, not started."""
        section = self.config.sampler
        cls = registry.samplers.get(section.name)
        sampler: Sampler = cls(**plugin_arguments(cls, section.parameters))
        return sampler

    def _draw(self, sampler: Sampler, first: int = 0, state: dict[str, Any] | None = None) -> Iterator[SubnetShape]:
        space = self.components.space
        with warnings.catch_warnings():
            # What a sampler warns of has been said when the configuration was checked.
            warnings.simplefilter("ignore", NaspipeWarning)
            sampler.start(space, self.config.seed)
        if state is not None:
            sampler.restore(state)
        for index in itertools.count(first):
            yield self.describe(sampler, index)

    def describe(self, sampler: Sampler, index: int) -> SubnetShape:
        """Return the subnet that a started sampler draws next."""
        used = self.supernet.used_layers(sampler.draw(index))
        return self.costs.describe([[UsedLayer(layer.name, layer.strict) for layer in row] for row in used])

    def layer_bytes(self) -> dict[tuple[int, str], int]:
        """Return the size of every layer's parameters, by block and name."""
        return {
            (layer.block, layer.name): sum(p.numel() * p.element_size() for p in layer.parameters.values())
            for layer in self.supernet.layers()
        }

    def layout(self, stages: int | None = None) -> Layout:
        """Return the configuration's layout, for another number of stages if one is given."""
        section = self.config.executor
        return Layout(section.stages if stages is None else stages, section.segments, section.partition, section.window)

    def planner(
        self, first: int = 0, sampler_state: dict[str, Any] | None = None, gate: Gate = open_gate
    ) -> tuple[Planner, Cuts]:
        """Return a planner of the run that has not run yet, and the partition of all its subnets.

        Args:
            first: The first subnet to train.
            sampler_state: State of the sampler there; needed unless that is the first of all.
            gate: Says which subnets are admitted only when all before them have been updated.

        Raises:
            InputError: More stages than blocks, or what the executor does not support.
        """
        scenario, layout = self.scenario(), self.layout()
        subnets = self._draw(self.make_sampler(), first, sampler_state)
        return scenario.planner(self.components.executor, layout, first, subnets, gate), scenario.cuts(layout)

    def plan(self, count: int | None = None, stages: int | None = None, gate: Gate = open_gate) -> Plan:
        """Return the plan of a run.

        Args:
            count: Number of subnets; by default the configuration's.
            stages: Pipeline stages; by default the configuration's.
            gate: Says which subnets are admitted only when all before them have been updated.

        Raises:
            InputError: More stages than blocks, or what the executor does not support.
        """
        executor, name = self.components.executor, self.config.executor.name
        return self.scenario(count).plan(executor, self.layout(stages), name, gate)

    def warn(self) -> None:
        """Warn if too few subnets may be in flight for the stages."""
        warn_of_few_in_flight(self.scenario(), self.layout(), self.components.executor)


def warn_of_few_in_flight(scenario: Scenario, layout: Layout, executor: Executor) -> None:
    """Warn if the delay of always-active layers, or the window, keeps stages idle, and say how long.

    Args:
        scenario: The subnets. With a delay D at most D + 1 of them are in flight, since each reads always-active layers
            after the update of the subnet D + 1 before it.
        layout: The layout, which fits.
        executor: One that fills a fixed pattern never has more in flight than that, and is left alone.
    """
    stages, microbatches = layout.stages, scenario.microbatches
    costs = stage_costs(scenario, layout)
    own = executor.window(PipelineShape(stages, microbatches, scenario.count, layout.segments))
    enough = min(needed_in_flight(costs, microbatches), own)
    window = own if layout.window is None else layout.window
    delayed = scenario.delay + 1 if scenario.delay is not None and scenario.always_active else own
    if min(window, delayed) >= enough:
        return
    few, advice = [], []  # Where both keep stages idle, raising one of them is not enough.
    if delayed < enough:
        few.append(f"training.delay is {scenario.delay}, but {stages} stages need {enough - 1}")
        advice.append("training.delay, which changes the result")
    if window < enough:
        few.append(f"executor.window is {window}, but {stages} stages need {enough} subnets in flight")
        advice.append("executor.window, which does not change the result")
    units = f"with {microbatches} micro-batch{'es' if microbatches > 1 else ''}"
    bubble = least_bubble(costs, microbatches, min(window, delayed))
    warnings.warn(
        f"{'; '.join(few)} {units}: the bubble will be at least about {bubble:.2f}. Raise {' and '.join(advice)}.",
        NaspipeWarning,
        stacklevel=3,
    )


def prepare_planning(config: RunConfig, components: Components, splits: Splits | None = None) -> Planning:
    """Build the supernet on the meta device and find its costs.

    Args:
        config: The configuration.
        components: Its plug-ins.
        splits: The task's data; needed for the costs ``flops`` and ``profile``, and loaded if it is not given.

    Raises:
        InputError: The costs cannot be had.
    """
    supernet = build_on_meta(components.space, config.seed, config.training.freeze_always_active)
    return Planning(config, components, supernet, _costs(config, components, supernet, splits))


def check_layout(config: RunConfig, components: Components, splits: Splits | None = None) -> Planning:
    """Refuse a configuration whose layout does not fit its space, or this machine; measure nothing.

    Returns:
        What its plans are made from; where costs are to be measured, with uniform ones.

    Raises:
        InputError: It does not fit.
    """
    if config.executor.transport == "distributed":
        from naspipe.training.processes import check_processes

        check_processes(config)
    elif torchrun_processes() > 1:
        raise InputError(
            f"torchrun has started {torchrun_processes()} processes, but executor.transport is "
            f"{config.executor.transport!r}. Set executor.transport=distributed, or start naspipe by itself."
        )
    planning = prepare_planning(without_measuring(config, "uniform"), components, splits)
    planning.planner()
    return planning


def without_measuring(config: RunConfig, instead: str) -> RunConfig:
    """Return a configuration with other costs where they would have to be measured."""
    if config.executor.costs != PROFILE:
        return config
    return config.model_copy(update={"executor": config.executor.model_copy(update={"costs": instead})})


def build_on_meta(space: SearchSpace, seed: int, freeze_always_active: bool = False) -> Supernet:
    """Return a space's supernet without memory for its weights."""
    try:
        with torch.device("meta"):
            return Supernet(space, seed, freeze_always_active=freeze_always_active)
    except SpaceError:
        # A space may compute with the values of tensors while it is built; then there is no other way.
        return Supernet(space, seed, freeze_always_active=freeze_always_active).to("meta")


def _costs(config: RunConfig, components: Components, supernet: Supernet, splits: Splits | None) -> CostTable:
    name = config.executor.costs
    if name == "uniform":
        return CostTable.uniform(len(supernet))
    if name == PROFILE:
        # Measuring trains, and whoever trains plans.
        from naspipe.training.profiling import profile_costs

        return profile_costs(config, splits or components.task.load(config.seed))
    if name != "flops":
        table = CostTable.read(Path(name))
        if len(table.blocks) != len(supernet):
            raise InputError(
                f"executor.costs: {name} must have an entry for each of the {len(supernet)} blocks, but has "
                f"{len(table.blocks)}."
            )
        return table
    data = (splits or components.task.load(config.seed)).train
    batch = EpochOrder(data, config.training.batch_size, config.seed, "train").batch(0)
    inputs = split_batch(batch, config.training.microbatches)[0].inputs
    return scaled_table(count_flops(supernet, to_meta(inputs)).costs())
