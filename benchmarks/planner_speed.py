"""Measure the planner: actions per second, pace over a long run, resident memory.

Run: python benchmarks/planner_speed.py [subnets]. One process; unit costs, M = 1, one segment, uniform and
spaced sampling of 48 blocks x 96 candidates; 64 and 1,024 stages with as many blocks.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable

from naspipe.executors.csp import CSP
from naspipe.pipeline.abstract import AbstractSpace
from naspipe.pipeline.scenario import Layout, Scenario
from naspipe.space.sampler import Sampler
from naspipe_strategies.spaced import SpacedSampler
from naspipe_strategies.uniform import UniformSampler

LONG = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000


def rate(blocks: int, stages: int, subnets: int, make: Callable[[], Sampler]) -> float:
    """Return the actions planned per second, sampling included."""
    space = AbstractSpace(blocks, 96)
    scenario = Scenario(lambda: space.subnets(make, 0), subnets, 1, None, ())
    planner = scenario.planner(CSP(), Layout(stages))
    start = time.perf_counter()
    count = sum(1 for _ in planner.run())
    return count / (time.perf_counter() - start)


def main() -> None:
    """Print rates, then the pace of a long run."""
    for name, blocks, stages, subnets, make in (
        ("8 stages, uniform", 48, 8, 2000, UniformSampler),
        ("8 stages, spaced", 48, 8, 2000, lambda: SpacedSampler(8)),
        ("64 stages, uniform", 64, 64, 400, UniformSampler),
        ("64 stages, spaced", 64, 64, 400, lambda: SpacedSampler(64)),
        ("1,024 stages, uniform", 1024, 1024, 60, UniformSampler),
    ):
        rates = [rate(blocks, stages, subnets, make) for _ in range(5)]
        print(
            f"{name:<22} {statistics.median(rates):>9,.0f} actions/s, {min(rates):,.0f} to {max(rates):,.0f}",
            flush=True,
        )
    space = AbstractSpace(48, 96)
    scenario = Scenario(lambda: space.subnets(UniformSampler, 0), LONG, 1, None, ())
    planner = scenario.planner(CSP(), Layout(8))
    ends: dict[int, float] = {}
    memory: dict[int, float] = {}
    marks = {1, 1000, 2000, LONG // 2, LONG - 1000, LONG - 1}
    for planned in planner.run():
        action = planned.action
        if action.stage == 0 and action.kind == 2 and action.subnet in marks and action.subnet not in ends:
            ends[action.subnet] = time.perf_counter()
            memory[action.subnet] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    early = (ends[2000] - ends[1000]) / 1000
    late = (ends[LONG - 1] - ends[LONG - 1000]) / 999
    print(f"subnets 1,000 to 2,000: {early * 1e6:.0f} us each; the last 1,000 of {LONG:,}: {late * 1e6:.0f} us each")
    print("peak resident memory, MiB: " + ", ".join(f"{mark:,}: {memory[mark]:.0f}" for mark in sorted(memory)))


if __name__ == "__main__":
    main()
