"""Simulation of abstract spaces: how executors, samplers and layouts compare."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from naspipe import registry
from naspipe.config.parameters import parameters_of
from naspipe.config.resolve import plugin_arguments
from naspipe.config.source import parse_plugin_text
from naspipe.errors import InputError
from naspipe.pipeline.abstract import AbstractSpace, parse_space
from naspipe.pipeline.bound import Bound
from naspipe.pipeline.executor import Executor
from naspipe.pipeline.occupancy import spaced_distance
from naspipe.pipeline.plan import bubble
from naspipe.pipeline.scenario import Layout, Scenario
from naspipe.space.sampler import Sampler

COLUMNS = (
    "space", "executor", "sampler", "distance", "stages", "microbatches", "segments", "delay", "seed",
    "subnets", "distinct", "makespan", "bound", "bubble",
)  # fmt: skip
"""The keys of a row, in the order of a CSV file's columns."""


@dataclass(frozen=True)
class Simulation:
    """A grid of simulations; every combination is run for every seed.

    Attributes:
        spaces: Abstract spaces, as ``48x72`` or presets.
        executors: Names, with options as ``gpipe:bulk=4``.
        samplers: Names.
        stages: Numbers of stages.
        microbatches: Numbers of micro-batches.
        segments: Numbers of segments.
        delays: Delays of always-active layers at both ends; None for no such layers.
        seeds: Number of seeds, from 0 on.
        subnets: Subnets of each simulation.
        distance: Distance of the sampler ``spaced``; None for ``spaced_distance``.
        window: Subnets in flight at most; None: the executor says.
    """

    spaces: Sequence[str]
    executors: Sequence[str]
    samplers: Sequence[str]
    stages: Sequence[int]
    microbatches: Sequence[int] = (1,)
    segments: Sequence[int] = (1,)
    delays: Sequence[int | None] = (None,)
    seeds: int = 10
    subnets: int = 600
    distance: int | None = None
    window: int | None = None

    def check(self) -> None:
        """Check every combination, without running any.

        Raises:
            InputError: A name is unknown, or a combination does not fit.
        """
        for space, executor, sampler, stages, microbatches, segments, delay in self._grid():
            scenario = self._scenario(parse_space(space), sampler, stages, microbatches, delay, 0)
            scenario.planner(parse_executor(executor), Layout(stages, segments, window=self.window))

    @property
    def count(self) -> int:
        """Number of simulations."""
        return len(list(self._grid())) * self.seeds

    def _grid(self) -> Iterator[tuple[str, str, str, int, int, int, int | None]]:
        return itertools.product(
            self.spaces, self.executors, self.samplers, self.stages, self.microbatches, self.segments,
            self.delays,
        )  # fmt: skip

    def run(self) -> Iterator[dict[str, Any]]:
        """Yield one row for each simulation, with the keys ``COLUMNS``."""
        for space_text, executor_text, sampler, stages, microbatches, segments, delay in self._grid():
            space, executor = parse_space(space_text), parse_executor(executor_text)
            for seed in range(self.seeds):
                scenario = self._scenario(space, sampler, stages, microbatches, delay, seed)
                planner = scenario.planner(executor, Layout(stages, segments, window=self.window))
                makespan = max(planned.end for planned in planner.run())
                bound = Bound(planner.contract, microbatches, planner.shape.delay)
                distinct = set()
                for subnet in scenario.subnets():
                    bound.add(subnet)
                    distinct.add(tuple(row[0].name for row in subnet.layers))
                yield {
                    "space": space_text,
                    "executor": executor_text,
                    "sampler": sampler,
                    "distance": self._distance(space, stages, microbatches) if sampler == "spaced" else None,
                    "stages": stages,
                    "microbatches": microbatches,
                    "segments": segments,
                    "delay": delay,
                    "seed": seed,
                    "subnets": self.subnets,
                    "distinct": len(distinct),
                    "makespan": makespan,
                    "bound": bound.value(stages),
                    "bubble": bubble(bound.work, stages, makespan),
                }

    def _scenario(
        self, space: AbstractSpace, sampler: str, stages: int, microbatches: int, delay: int | None, seed: int
    ) -> Scenario:
        make = self._sampler_maker(space, sampler, stages, microbatches)
        ends = delay is not None
        return Scenario(
            draw=lambda: space.subnets(make, seed, ends),
            count=self.subnets,
            microbatches=microbatches,
            delay=delay,
            always_active=(0, len(space.decisions) - 1) if ends else (),
        )

    def _sampler_maker(self, space: AbstractSpace, name: str, stages: int, microbatches: int) -> Callable[[], Sampler]:
        cls = registry.samplers.get(name)
        takes_distance = any(parameter.name == "distance" for parameter in parameters_of(cls))
        distance = self._distance(space, stages, microbatches)
        return lambda: cls(distance=distance) if takes_distance else cls()

    def _distance(self, space: AbstractSpace, stages: int, microbatches: int) -> int:
        if self.distance is not None:
            return self.distance
        return spaced_distance(space, stages, microbatches)


def parse_executor(text: str) -> Executor:
    """Return the executor of a text: a name or reference, with options as in ``gpipe:bulk=4``.

    Raises:
        InputError: The executor is unknown, or refuses its options.
    """
    name, values = parse_plugin_text(text)
    cls = registry.executors.get(name)
    try:
        executor: Executor = cls(**plugin_arguments(cls, values))
    except (ValidationError, TypeError, ValueError) as error:
        takes = ", ".join(parameter.name for parameter in parameters_of(cls)) or "nothing"
        raise InputError(
            f"executor {text!r} must have options that it takes ({takes}), as in gpipe:bulk=4, but: {error}"
        ) from error
    return executor
