"""What keeps the stages busy: how many subnets must be in flight, and how far apart equal options must be.

Letters: S stages, M micro-batches, N subnets, at most W of them in flight. c[s] is the cost of a unit on stage s,
forward and backward together.

Stage s works M * c[s] ticks for a subnet. Before that, the first micro-batch has passed the earlier stages; after
that, the last one passes back through them. So a subnet is in flight for at least L ticks, where L is the maximum
over s of c[0] + ... + c[s-1] + M * c[s]. At most W subnets are in flight at any time, so N subnets take at least
N * L / W ticks (Little's law). In this time the S stages work N * M * (c[0] + ... + c[S-1]) ticks. With equal costs
L is (S + M - 1) c, and the bubble is at least 1 - W * M / (S + M - 1).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from naspipe.pipeline.scenario import Layout, Scenario
from naspipe.space import SearchSpace


def stage_costs(scenario: Scenario, layout: Layout) -> list[int]:
    """Return the cost of a unit on each stage, forward and backward, summed over the first subnets.

    Raises:
        InputError: The layout does not fit.
    """
    if layout.partition == "balanced":
        # Each subnet has its own partition, as even as can be.
        return [1] * layout.stages
    cuts, costs = scenario.cuts(layout), scenario.expected_costs
    return [sum(costs[block] for block in layout.parts.blocks_of_stage(stage, cuts)) for stage in range(layout.stages)]


def needed_in_flight(costs: Sequence[int], microbatches: int) -> int:
    """Return how many subnets must be in flight for the costliest stage to work without a break.

    Args:
        costs: Cost of a unit on each stage.
        microbatches: Micro-batches of each batch.
    """
    return -(-_passage(costs, microbatches) // (microbatches * max(costs)))


def least_bubble(costs: Sequence[int], microbatches: int, in_flight: int) -> float:
    """Return a lower bound on the bubble of any plan for a number of subnets in flight.

    Args:
        costs: Cost of a unit on each stage.
        microbatches: Micro-batches of each batch.
        in_flight: Subnets in flight at most.
    """
    work = in_flight * microbatches * sum(costs)
    return max(0.0, 1 - work / (len(costs) * _passage(costs, microbatches)))


def _passage(costs: Sequence[int], microbatches: int) -> int:
    """Return the least number of ticks that a subnet is in flight, L."""
    before = [0, *itertools.accumulate(costs)]
    return max(below + microbatches * cost for below, cost in zip(before, costs, strict=False))


def spaced_distance(space: SearchSpace, stages: int, microbatches: int) -> int:
    """Return the least distance of spaced sampling that keeps a pipeline busy, as far as the space allows.

    It is ceil(stages / micro-batches), but at most the number of options of the largest decision minus 2. With a
    larger distance, every decision of the space would draw its options in a cycle.

    Args:
        space: The search space.
        stages: Pipeline stages.
        microbatches: Micro-batches of each batch.
    """
    largest = max(len(decision.options) for decision in space.decisions)
    return min(-(-stages // microbatches), max(0, largest - 2))
