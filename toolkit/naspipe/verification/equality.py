"""Verification of equality: the same subnets trained under several executors and layouts, compared bit for bit."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from naspipe.config.resolve import resolve
from naspipe.config.schema import CheckpointConfig, RunConfig
from naspipe.config.source import Source, parse_plugin_text
from naspipe.pipeline.plan import Plan
from naspipe.pipeline.plan_index import Violation
from naspipe.pipeline.simulation import parse_executor
from naspipe.pipeline.validator import find_violations
from naspipe.preflight.layout import check_layout, planning_without_profile
from naspipe.training.components import contract_of
from naspipe.training.context import RunContext
from naspipe.training.files import TrainingFiles
from naspipe.training.profiling import measure_costs
from naspipe.training.progress import Watch, ignore
from naspipe.training.supernet_training import TrainingResult, make_trace, train_supernet


class Combination(NamedTuple):
    """Executor and layout of one training.

    Attributes:
        executor: A name, with options as ``gpipe:bulk=4``.
        stages: Number of stages.
        transport: ``in-process`` or ``distributed``.
    """

    executor: str
    stages: int
    transport: str

    def __str__(self) -> str:
        return f"{self.executor} on {self.stages} stage{'s' if self.stages > 1 else ''}, {self.transport}"


REFERENCE = Combination("sequential", 1, "in-process")
"""The training whose bits most contracts promise."""


@dataclass(frozen=True)
class Bits:
    """The results of a training that are compared.

    Attributes:
        digests: Digest of every layer: weights, optimizer state and version.
        losses: Loss of every subnet; None where it was not finite.
    """

    digests: dict[str, str]
    losses: list[float | None]


@dataclass(frozen=True)
class TracedTraining(Bits):
    """The results of a recorded training.

    Attributes:
        trace: The plan with measured times and versions.
        peak_memory: Peak resident memory of each process, in MiB; on GPUs that of tensors.
    """

    trace: Plan
    peak_memory: list[float]


@dataclass(frozen=True)
class Verdict:
    """The verdict on one training.

    Attributes:
        executor: Its executor, with options.
        stages: Its number of stages.
        transport: Its transport.
        outcome: Its results.
        violations: Violations of its contract in its trace.
        reference: The training that it must equal, for people; empty if its contract promises no equality, or if it is
            the first training with such a contract.
        difference: How it differs from the reference; empty if it does not.
    """

    executor: str
    stages: int
    transport: str
    outcome: TracedTraining
    violations: list[Violation]
    reference: str
    difference: str

    @property
    def kept(self) -> bool:
        """Whether it kept its contract."""
        return not self.violations and not self.difference


def verify(
    config: RunContext | RunConfig,
    executors: Sequence[str],
    stages: Sequence[int],
    transports: Sequence[str],
    subnets: int | None = None,
    watch: Watch = ignore,
) -> Iterator[Verdict]:
    """Train under every combination and yield the verdicts; sequential training on one stage comes first.

    Args:
        config: The run; its executor section sets partition, segments, costs and window.
        executors: Names, with options as ``gpipe:bulk=4``.
        stages: Numbers of stages.
        transports: ``in-process`` or ``distributed``.
        subnets: Number of subnets to train; by default the configuration's.
        watch: Called with the progress of measurements and trainings.

    Raises:
        ConfigError: A combination is wrong; before anything is trained.
    """
    context = RunContext.load(config)
    combinations = combine(context, executors, stages, transports, subnets, watch)
    measure_costs(context, watch=watch)
    references: dict[str, tuple[str, TracedTraining]] = {}
    for combination in combinations:
        one = configure(context, *combination, subnets)
        outcome = train_once(one, watch=watch)
        kind = one.contract.equal_runs
        reference, difference = "", ""
        if kind in references:
            reference, expected = references[kind]
            difference = find_difference(expected, outcome)
        elif kind:
            references[kind] = (str(combination), outcome)
        violations = find_violations(outcome.trace)
        yield Verdict(*combination, outcome, violations, reference, difference)


def combine(
    context: RunContext,
    executors: Sequence[str],
    stages: Sequence[int],
    transports: Sequence[str],
    subnets: int | None,
    watch: Watch = ignore,
) -> list[Combination]:
    """Return every combination, the reference first, after checking each configuration.

    Raises:
        ConfigError: A configuration is wrong.
        InputError: A layout does not fit.
    """
    rest = [Combination(e, s, t) for t in transports for e in executors for s in stages]
    combinations = list(dict.fromkeys([REFERENCE, *rest]))
    # The costs that are counted here serve all trainings.
    planning_without_profile(context, watch)
    for combination in combinations:
        check_layout(configure(context, *combination, subnets))
    return combinations


def configure(context: RunContext, executor: str, stages: int, transport: str, subnets: int | None) -> RunContext:
    """Return a run with another executor and layout, without a delay if its contract has none.

    Space, task, data, meta supernet and costs are shared with the given run.

    Raises:
        ConfigError: The configuration is wrong.
    """
    data = context.config.model_dump(mode="json")
    name, options = parse_plugin_text(executor)
    section = data["executor"]
    plugin = parse_executor(executor)
    segments = section["segments"] if plugin.composes_segments else 1
    partition = section["partition"]
    if isinstance(partition, list) and len(partition) != stages:
        partition = "static"
    section.update(
        name=name, options=options, stages=stages, transport=transport, segments=segments, partition=partition
    )
    if subnets is not None:
        data["training"]["subnets"] = subnets
    config = resolve(Source(data=data))
    if not contract_of(config, plugin).allows_delay:
        # A contract that governs all layers has no delay.
        config = config.model_copy(update={"training": config.training.model_copy(update={"delay": None})})
    return context.with_config(config)


def train_once(context: RunContext, folder: Path | None = None, watch: Watch = ignore) -> TracedTraining:
    """Train a supernet from the first subnet on, as a run does.

    Args:
        context: The run, with known costs.
        folder: An empty folder, which gets log, weights and checkpoints; by default a temporary folder, without
            checkpoints.
        watch: Called with the progress.

    Raises:
        TrainingError: The training cannot continue.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="naspipe-") as temporary:
            return train_once(with_checkpoints(context, None), Path(temporary), watch)
    files = TrainingFiles(folder)
    result = train_supernet(context, files, watch=watch, record=True)
    bits = read_bits(result, files)
    return TracedTraining(bits.digests, bits.losses, make_trace(context, result)[1], result.peak_memory)


def read_bits(result: TrainingResult, files: TrainingFiles) -> Bits:
    """Return the results of a recorded training that are compared."""
    return Bits(result.digests, [line.loss for line in files.subnets()])


def with_checkpoints(context: RunContext, every: int | None) -> RunContext:
    """Return a run that writes a checkpoint every so many subnets, or none, and keeps all."""
    settings = CheckpointConfig(every=every, keep=context.config.training.subnets)
    executor = context.config.executor.model_copy(update={"checkpoint": settings})
    return context.with_config(context.config.model_copy(update={"executor": executor}))


def find_difference(expected: Bits, found: Bits) -> str:
    """Return the first subnet whose loss differs and the first layer whose bits differ; empty if there is none."""
    parts = []
    if len(found.losses) != len(expected.losses):
        parts.append(f"{len(found.losses)} losses instead of {len(expected.losses)}")
    for index, (one, other) in enumerate(zip(expected.losses, found.losses, strict=False)):
        if one != other:
            parts.append(f"loss of subnet {index}: {other!r} instead of {one!r}")
            break
    for layer, digest in expected.digests.items():
        if found.digests.get(layer) != digest:
            parts.append(f"layer {layer}")
            break
    return "; ".join(parts)
