"""Comparison: the ablation over executors, samplers and stage counts, measured."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from naspipe import registry
from naspipe.components import build_components
from naspipe.config.parameters import parameters_of
from naspipe.config.schema import RunConfig
from naspipe.planning import check_layout, prepare_planning
from naspipe.space import SearchSpace
from naspipe.tasks.data import Splits
from naspipe.training.profiling import settled_costs
from naspipe.verification import configure, train_once

COLUMNS = (
    "executor", "sampler", "stages", "transport", "subnets", "subnets_per_second", "samples_per_second",
    "planned_bubble", "measured_bubble", "peak_memory_mib", "final_loss", "digest",
)  # fmt: skip
"""The keys of a row, in the order of a CSV file's columns."""

LAST = 0.1
"""Share of the last subnets whose mean is the final loss."""


@dataclass(frozen=True)
class Comparison:
    """A grid of trainings.

    Attributes:
        config: What they have in common.
        executors: Names, with options as ``gpipe:bulk=4``.
        samplers: Names; empty: the configuration's.
        stages: Numbers of stages.
        transport: ``in-process`` or ``distributed``; one stage always trains in this process.
        subnets: Subnets that each trains.
    """

    config: RunConfig
    executors: Sequence[str]
    samplers: Sequence[str]
    stages: Sequence[int]
    transport: str
    subnets: int

    def configurations(self) -> Iterator[tuple[str, str, RunConfig]]:
        """Yield executor, sampler and configuration of each training.

        Raises:
            ConfigError: One is wrong.
            InputError: A layout does not fit.
        """
        space = build_components(self.config).space
        for stages in self.stages:
            for sampler in self.samplers or [self.config.sampler.name]:
                for executor in self.executors:
                    transport = self.transport if stages > 1 else "in-process"
                    sampled = self.config.model_copy(
                        update={"sampler": self.config.sampler.model_validate(self._sampler(sampler, stages, space))}
                    )
                    config = configure(sampled, executor, stages, transport, self.subnets)
                    check_layout(config, build_components(config))
                    yield executor, sampler, config

    def _sampler(self, name: str, stages: int, space: SearchSpace) -> dict[str, Any]:
        """Return a sampler's section; a distance is as the configuration has it, or ceil(stages / M)."""
        if name == self.config.sampler.name:
            return {"name": name, **self.config.sampler.parameters}
        if all(parameter.name != "distance" for parameter in parameters_of(registry.samplers.get(name))):
            return {"name": name}
        most = max(0, max(len(decision.options) for decision in space.decisions) - 2)
        return {"name": name, "distance": min(-(-stages // self.config.training.microbatches), most)}

    def run(self) -> Iterator[dict[str, Any]]:
        """Train each and yield a row with the keys ``COLUMNS``; everything is checked before the first.

        Raises:
            TrainingError: A training cannot go on.
        """
        # Everything is checked before the first is trained, or costs are measured.
        list(self.configurations())
        splits = build_components(self.config).task.load(self.config.seed)
        with settled_costs(self.config, splits) as settled:
            yield from replace(self, config=settled)._rows(splits)

    def _rows(self, splits: Splits) -> Iterator[dict[str, Any]]:
        for executor, sampler, config in list(self.configurations()):
            planned = prepare_planning(config, build_components(config), splits).plan().bubble
            outcome = train_once(config, splits)
            seconds = outcome.trace.makespan / 1e6
            losses = [loss for loss in outcome.losses if loss is not None]
            last = losses[-max(1, round(len(losses) * LAST)) :]
            digests = repr(sorted(outcome.digests.items()))
            yield {
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
