"""Subnets in flight: how many the stages need, and what fewer cost.

A letter each: S stages, M micro-batches, N subnets, W of them in flight at most, c[s] what a unit costs stage s,
forward and backward together.

Stage s works M * c[s] for a subnet, after its first micro-batch has passed the stages before and until its last one
starts back through them. So a subnet is in flight for at least L = max over s of c[0] + ... + c[s-1] + M * c[s].
Not more than W are at any time, so that N of them take N * L / W at least (Little's law), of which S stages work
N * M * (c[0] + ... + c[S-1]). With equal costs L is (S + M - 1) c, and the bubble at least 1 - W * M / (S + M - 1).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from naspipe.pipeline.scenario import Layout, Scenario
from naspipe.space import SearchSpace


def stage_costs(scenario: Scenario, layout: Layout) -> list[int]:
    """Return what a unit costs each stage, forward and backward, summed over the first subnets.

    Raises:
        InputError: The layout does not fit.
    """
    if layout.partition == "balanced":
        # Each subnet has its own partition, as even as can be.
        return [1] * layout.stages
    cuts = scenario.cuts(layout)[:: layout.segments]
    return [sum(scenario.expected_costs[start:end]) for start, end in itertools.pairwise(cuts)]


def needed_in_flight(costs: Sequence[int], microbatches: int) -> int:
    """Return how many subnets must be in flight for the costliest stage to work without a break.

    Args:
        costs: What a unit costs each stage.
        microbatches: Micro-batches of each batch.
    """
    return -(-_passage(costs, microbatches) // (microbatches * max(costs)))


def least_bubble(costs: Sequence[int], microbatches: int, in_flight: int) -> float:
    """Return a lower bound on the bubble of any plan with so many subnets in flight at most.

    Args:
        costs: What a unit costs each stage.
        microbatches: Micro-batches of each batch.
        in_flight: Subnets in flight at most.
    """
    work = in_flight * microbatches * sum(costs)
    return max(0.0, 1 - work / (len(costs) * _passage(costs, microbatches)))


def _passage(costs: Sequence[int], microbatches: int) -> int:
    """Return the least time that a subnet is in flight."""
    before = [0, *itertools.accumulate(costs)]
    return max(below + microbatches * cost for below, cost in zip(before, costs, strict=False))


def spaced_distance(space: SearchSpace, stages: int, microbatches: int) -> int:
    """Return the least distance of spaced sampling that keeps a pipeline busy, as far as the space allows.

    It is ceil(stages / micro-batches), but no more than the largest decision has options less two: beyond that, every
    decision of the space would draw its options in a cycle.

    Args:
        space: The search space.
        stages: Pipeline stages.
        microbatches: Micro-batches of each batch.
    """
    largest = max(len(decision.options) for decision in space.decisions)
    return min(-(-stages // microbatches), max(0, largest - 2))
