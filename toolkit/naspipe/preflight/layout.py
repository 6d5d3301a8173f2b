"""The check of a run's layout: whether it fits the space and the machine, and keeps the stages busy."""

from __future__ import annotations

import warnings

from naspipe.environment import torchrun_processes
from naspipe.errors import InputError, NaspipeWarning
from naspipe.pipeline.costs import CostTable
from naspipe.pipeline.executor import Executor, PipelineShape
from naspipe.pipeline.occupancy import least_bubble, needed_in_flight, stage_costs
from naspipe.pipeline.scenario import Layout, Scenario
from naspipe.training.context import RunContext
from naspipe.training.planning import FLOPS, PROFILE, Planning
from naspipe.training.progress import Progress, Watch, ignore


def check_layout(context: RunContext, watch: Watch = ignore) -> Planning:
    """Refuse a layout that does not fit the space or this machine; nothing is measured.

    Args:
        context: The run.
        watch: Called before FLOPs are counted.

    Returns:
        The source of the run's plans; with uniform costs if the costs are still to be measured.

    Raises:
        InputError: The layout does not fit.
    """
    config = context.config
    if config.executor.transport == "distributed":
        # torch.distributed is imported only where it is used.
        from naspipe.training.distributed.requirements import check_stage_processes

        check_stage_processes(config)
    elif torchrun_processes() > 1:
        raise InputError(
            f"torchrun has started {torchrun_processes()} processes, but executor.transport is "
            f"{config.executor.transport!r}. Set executor.transport=distributed, or start naspipe by itself."
        )
    planning = planning_without_profile(context, watch)
    planning.planner()
    return planning


def planning_without_profile(context: RunContext, watch: Watch = ignore) -> Planning:
    """Return the source of a run's plans, with uniform costs if the costs are still to be measured.

    Args:
        context: The run.
        watch: Called before FLOPs are counted.
    """
    costs, subnets = context.config.executor.costs, context.config.training.subnets
    if costs == FLOPS and not context.knows_costs:
        watch(Progress("train", 0, subnets, "counting the FLOPs of every layer"))
    if costs != PROFILE or context.knows_costs:
        return context.planning
    uniform = CostTable.uniform(len(context.meta_supernet))
    return Planning(context.config, context.components, context.meta_supernet, uniform)


def warn_of_idle_stages(planning: Planning) -> None:
    """Warn if too few subnets may be in flight to keep a run's stages busy."""
    warn_of_few_in_flight(planning.scenario(), planning.layout, planning.components.executor)


def warn_of_few_in_flight(scenario: Scenario, layout: Layout, executor: Executor) -> None:
    """Warn if the delay of always-active layers or the window keeps stages idle, and estimate the bubble.

    Args:
        scenario: The subnets. With a delay D at most D + 1 of them are in flight, since each reads always-active layers
            after the update of the subnet D + 1 before it.
        layout: The layout, which fits.
        executor: The executor. If it has a fixed pattern, more subnets in flight than that pattern needs are not
            missed.
    """
    stages, microbatches = layout.stages, scenario.microbatches
    costs = stage_costs(scenario, layout)
    own = executor.window(PipelineShape(stages, microbatches, scenario.count, layout.segments))
    enough = min(needed_in_flight(costs, microbatches), own)
    window = own if layout.window is None else layout.window
    delayed = scenario.delay + 1 if scenario.delay is not None and scenario.always_active else own
    if min(window, delayed) >= enough:
        return
    few, advice = [], []  # If both keep stages idle, raising one of them is not enough.
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
