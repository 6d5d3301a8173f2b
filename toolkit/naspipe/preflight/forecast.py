"""The forecast: how much a pipeline speeds up the training of a space, and which settings help."""

from __future__ import annotations

import warnings
from typing import NamedTuple

from naspipe import registry
from naspipe.errors import InputError, NaspipeWarning
from naspipe.keys import keyed_random
from naspipe.pipeline.occupancy import spaced_distance
from naspipe.pipeline.scenario import Layout
from naspipe.space.sampler import Sampler
from naspipe.training.planning import Planning

PAIRS = 500
"""Number of pairs of random subnets from which the chance of a conflict is estimated."""

SUBNETS = 96
"""Number of subnets in each simulation."""

STAGES = (2, 4, 8, 16)
MICROBATCHES = (1, 4, 8)
SAMPLERS = ("uniform", "fair", "spaced")


class SpeedUp(NamedTuple):
    """The expected speed-up of pipelines.

    Attributes:
        sampler: Name of the sampler.
        microbatches: Micro-batches of each batch.
        speedups: For each of ``STAGES`` the time on one stage divided by the time on that many stages, or None
            if the space has fewer blocks than stages.
    """

    sampler: str
    microbatches: int
    speedups: tuple[float | None, ...]


def conflict_chance(planning: Planning) -> float:
    """Return the chance that two random subnets share a strict layer."""
    space, supernet, seed = planning.components.space, planning.supernet, planning.config.seed
    drawn = [
        {
            (layer.block, layer.name)
            for row in supernet.used_layers(space.random_architecture(keyed_random(seed, "forecast", index)))
            for layer in row
            if layer.strict
        }
        for index in range(2 * PAIRS)
    ]
    conflicts = sum(bool(drawn[2 * pair] & drawn[2 * pair + 1]) for pair in range(PAIRS))
    return conflicts / PAIRS


def forecast_speedups(planning: Planning) -> list[SpeedUp]:
    """Return the expected speed-up of ``csp`` for each sampler and number of micro-batches."""
    csp = registry.executors.get("csp")
    result = []
    for name in SAMPLERS:
        for microbatches in MICROBATCHES:
            speedups: list[float | None] = []
            for stages in STAGES:
                sampler = _sampler(planning, name, stages, microbatches)
                scenario = planning.scenario(SUBNETS, microbatches, sampler)
                try:
                    planner = scenario.planner(csp(), Layout(stages))
                except InputError:
                    speedups.append(None)  # fewer blocks than stages
                    continue
                makespan = work = 0
                for planned in planner.run():
                    makespan = max(makespan, planned.end)
                    work += planned.end - planned.start
                speedups.append(work / makespan)
            result.append(SpeedUp(name, microbatches, tuple(speedups)))
    return result


def _sampler(planning: Planning, name: str, stages: int, microbatches: int) -> Sampler:
    cls = registry.samplers.get(name)
    if name != "spaced":
        sampler: Sampler = cls()
        return sampler
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NaspipeWarning)
        spaced: Sampler = cls(distance=spaced_distance(planning.components.space, stages, microbatches))
    return spaced
