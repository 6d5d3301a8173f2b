"""Comparison: measurements of one training under several executors, samplers and stage counts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from naspipe import registry
from naspipe.config.parameters import parameters_of
from naspipe.config.schema import RunConfig
from naspipe.pipeline.occupancy import spaced_distance
from naspipe.preflight.layout import check_layout, planning_without_profile
from naspipe.training.context import RunContext
from naspipe.training.profiling import measure_costs
from naspipe.training.progress import Watch, ignore
from naspipe.verification.equality import configure, train_once

COLUMNS = (
    "executor", "sampler", "stages", "transport", "subnets", "subnets_per_second", "samples_per_second",
    "planned_bubble", "measured_bubble", "peak_memory_mib", "final_loss", "digest",
)  # fmt: skip
"""The keys of a row, in the order of a CSV file's columns."""

LAST = 0.1
"""Share of the subnets, from the last on, whose mean loss is the final loss."""


@dataclass(frozen=True)
class Comparison:
    """A grid of trainings.

    Attributes:
        config: The run that all trainings share.
        executors: Names, with options as ``gpipe:bulk=4``.
        samplers: Names; empty: the configuration's sampler.
        stages: Numbers of stages.
        transport: ``in-process`` or ``distributed``; one stage always trains in this process.
        subnets: Number of subnets of each training.
    """

    config: RunContext | RunConfig
    executors: Sequence[str]
    samplers: Sequence[str]
    stages: Sequence[int]
    transport: str
    subnets: int

    def run(self, watch: Watch = ignore) -> Iterator[dict[str, Any]]:
        """Train each combination and yield a row with the keys ``COLUMNS``; all are checked before the first training.

        Args:
            watch: Called with the progress of measurements and trainings.

        Raises:
            ConfigError: A configuration is wrong.
            InputError: A layout does not fit.
            TrainingError: A training cannot continue.
        """
        base = RunContext.load(self.config)
        # The costs that are counted here serve all trainings.
        planning_without_profile(base, watch)
        trainings = list(self._contexts(base))
        for _, _, context in trainings:
            check_layout(context)
        measure_costs(base, watch=watch)
        for executor, sampler, context in trainings:
            yield self._row(executor, sampler, context, watch)

    def _contexts(self, context: RunContext) -> Iterator[tuple[str, str, RunContext]]:
        """Yield executor, sampler and run of each training."""
        for stages in self.stages:
            for sampler in self.samplers or [context.config.sampler.name]:
                section = context.config.sampler.model_validate(self._sampler(context, sampler, stages))
                sampled = context.with_config(context.config.model_copy(update={"sampler": section}))
                for executor in self.executors:
                    transport = self.transport if stages > 1 else "in-process"
                    yield executor, sampler, configure(sampled, executor, stages, transport, self.subnets)

    def _sampler(self, context: RunContext, name: str, stages: int) -> dict[str, Any]:
        """Return a sampler's section; its distance is the configuration's, or fits the stages."""
        config = context.config
        if name == config.sampler.name:
            return {"name": name, **config.sampler.parameters}
        if all(parameter.name != "distance" for parameter in parameters_of(registry.samplers.get(name))):
            return {"name": name}
        distance = spaced_distance(context.components.space, stages, config.training.microbatches)
        return {"name": name, "distance": distance}

    def _row(self, executor: str, sampler: str, context: RunContext, watch: Watch) -> dict[str, Any]:
        config = context.config
        planned = context.planning.plan().bubble
        outcome = train_once(context, watch=watch)
        seconds = outcome.trace.makespan / 1e6
        losses = [loss for loss in outcome.losses if loss is not None]
        last = losses[-max(1, round(len(losses) * LAST)) :]
        digests = repr(sorted(outcome.digests.items()))
        return {
            "executor": executor,
            "sampler": sampler,
            "stages": config.executor.stages,
            "transport": config.executor.transport,
            "subnets": self.subnets,
            "subnets_per_second": self.subnets / seconds,
            "samples_per_second": self.subnets * config.training.batch_size / seconds,
            "planned_bubble": planned,
            "measured_bubble": outcome.trace.bubble,
            "peak_memory_mib": " ".join(f"{memory:.0f}" for memory in outcome.peak_memory),
            "final_loss": fmean(last) if last else None,
            "digest": hashlib.sha256(digests.encode()).hexdigest()[:12],
        }
