"""Verification: the same subnets trained under several executors and layouts, compared bit for bit."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from naspipe.components import as_config, build_components, contract_of
from naspipe.config.schema import CheckpointConfig, RunConfig
from naspipe.errors import InputError
from naspipe.files import JsonLines, keep_lines, read_lines
from naspipe.pipeline.contract import Contract
from naspipe.pipeline.gate import drained_at
from naspipe.pipeline.plan import Plan
from naspipe.pipeline.validator import Violation, find_violations
from naspipe.planning import check_layout, prepare_planning
from naspipe.runs.progress import ignore
from naspipe.simulation import parse_executor, split_executor
from naspipe.tasks.data import Splits
from naspipe.training.checkpoint import CheckpointFolder
from naspipe.training.determinism import deterministic
from naspipe.training.events import Cut, SubnetRecord
from naspipe.training.gatekeeper import Gatekeeper
from naspipe.training.profiling import settled_costs
from naspipe.training.recorder import Recorder, Row, trace_of
from naspipe.training.setup import layer_digests, peak_memory, prepare_trainer, reset_peak_memory


class Combination(NamedTuple):
    """How one training is laid out.

    Attributes:
        executor: A name, with options as ``gpipe:bulk=4``.
        stages: Its stages.
        transport: ``in-process`` or ``distributed``.
    """

    executor: str
    stages: int
    transport: str

    def __str__(self) -> str:
        return f"{self.executor} on {self.stages} stage{'s' if self.stages > 1 else ''}, {self.transport}"


METRICS, CHECKPOINTS = "metrics.jsonl", "checkpoints"
"""What a training leaves in its folder: a line per subnet, and what it can be gone on from."""

REFERENCE = Combination("sequential", 1, "in-process")
"""What most contracts promise to equal."""


@dataclass(frozen=True)
class Bits:
    """What is compared of two trainings.

    Attributes:
        digests: Digest of every layer: weights, optimizer state and version.
        losses: Loss of every subnet; None where it was not finite.
    """

    digests: dict[str, str]
    losses: list[float | None]


@dataclass(frozen=True)
class Outcome(Bits):
    """What a training left.

    Attributes:
        trace: The plan with measured times and the versions seen.
        peak_memory: Peak resident memory of each process, in MiB; on GPUs the memory that tensors took there.
    """

    trace: Plan
    peak_memory: list[float]


@dataclass(frozen=True)
class Check:
    """One training, judged.

    Attributes:
        executor: Its executor, with options.
        stages: Its stages.
        transport: Its transport.
        outcome: What it left.
        violations: Where its trace breaks its contract.
        reference: What it must equal, for people; empty if its contract promises no equality, or it is the
            first of its kind.
        difference: How it differs from the reference; empty if it does not.
    """

    executor: str
    stages: int
    transport: str
    outcome: Outcome
    violations: list[Violation]
    reference: str
    difference: str

    @property
    def kept(self) -> bool:
        """Whether it kept its contract."""
        return not self.violations and not self.difference


def verify(
    config: RunConfig,
    executors: Sequence[str],
    stages: Sequence[int],
    transports: Sequence[str],
    subnets: int | None = None,
) -> Iterator[Check]:
    """Train under every combination and yield what came of it; sequential training on one stage comes first.

    Args:
        config: The configuration; its executor section gives partition, segments, costs and window.
        executors: Names, with options as ``gpipe:bulk=4``.
        stages: Numbers of stages.
        transports: ``in-process`` or ``distributed``.
        subnets: Subnets to train; by default the configuration's.

    Raises:
        ConfigError: A combination is wrong; before anything is trained.
    """
    combinations = combine(config, executors, stages, transports, subnets)
    splits = build_components(config).task.load(config.seed)
    references: dict[str, tuple[str, Outcome]] = {}
    with settled_costs(config, splits) as settled:
        for combination in combinations:
            outcome = train_once(configure(settled, *combination, subnets), splits)
            kind = equals(outcome.trace.contract)
            reference, difference = "", ""
            if kind in references:
                reference, expected = references[kind]
                difference = find_difference(expected, outcome)
            elif kind:
                references[kind] = (str(combination), outcome)
            violations = find_violations(outcome.trace)
            yield Check(*combination, outcome, violations, reference, difference)


def combine(
    config: RunConfig, executors: Sequence[str], stages: Sequence[int], transports: Sequence[str], subnets: int | None
) -> list[Combination]:
    """Return every combination, the reference first, after trying each configuration.

    Raises:
        ConfigError: One is wrong.
    """
    rest = [Combination(e, s, t) for t in transports for e in executors for s in stages]
    combinations = list(dict.fromkeys([REFERENCE, *rest]))
    for combination in combinations:
        one = configure(config, *combination, subnets)
        check_layout(one, build_components(one))
    return combinations


def equals(contract: Contract) -> str:
    """Return what runs of a contract are equal to; empty for a contract that promises no equality."""
    if contract.allows_delay:
        return "sequential"
    return "" if contract.kind == "stale" else str(contract)


def configure(config: RunConfig, executor: str, stages: int, transport: str, subnets: int | None) -> RunConfig:
    """Return a configuration with another executor and layout, and no delay where its contract has none.

    Raises:
        ConfigError: It is wrong.
    """
    data = config.model_dump(mode="json")
    name, options = split_executor(executor)
    section = data["executor"]
    segments = section["segments"] if parse_executor(executor).composes_segments else 1
    partition = section["partition"]
    if isinstance(partition, list) and len(partition) != stages:
        partition = "static"
    section.update(
        name=name, options=options, stages=stages, transport=transport, segments=segments, partition=partition
    )
    if subnets is not None:
        data["training"]["subnets"] = subnets
    try:
        return as_config(data)
    except InputError:
        if data["training"]["delay"] is None:
            raise
        # A contract that governs all layers has no delay.
        data["training"]["delay"] = None
        return as_config(data)


def train_once(config: RunConfig, splits: Splits, folder: Path | None = None) -> Outcome:
    """Train a supernet as a configuration says, from the first subnet on.

    Args:
        config: The configuration.
        splits: Its data.
        folder: An empty one, which gets checkpoints; by default there are none, and nothing is kept on disk.

    Raises:
        TrainingError: It cannot go on.
    """
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            return train_once(with_checkpoints(config, None), splits, Path(temporary))
    trained = train_in(folder, config, splits)
    plan = prepare_planning(config, build_components(config), splits).plan(gate=drained_at(trained.cuts))
    return Outcome(trained.bits.digests, trained.bits.losses, trace_of(plan, trained.rows), trained.peak_memory)


def with_checkpoints(config: RunConfig, every: int | None) -> RunConfig:
    """Return a configuration whose training writes a checkpoint each so many subnets, all of which are kept."""
    settings = CheckpointConfig(every=every, keep=config.training.subnets)
    return config.model_copy(update={"executor": config.executor.model_copy(update={"checkpoint": settings})})


class Trained(NamedTuple):
    """What a training left, in one part or several.

    Attributes:
        bits: What is compared.
        cuts: The subnets before which the plan of the last part was cut.
        rows: What was recorded in the last part.
        peak_memory: As in an outcome.
    """

    bits: Bits
    cuts: list[int]
    rows: list[Row]
    peak_memory: list[float]


def train_in(folder: Path, config: RunConfig, splits: Splits) -> Trained:
    """Train a supernet in a folder that has metrics and checkpoints; go on from the last of these.

    Raises:
        TrainingError: It cannot go on.
    """
    metrics, checkpoints = folder / METRICS, folder / CHECKPOINTS
    if config.executor.transport == "distributed":
        from naspipe.training.processes import train_in_processes

        results = train_in_processes(
            config, folder, metrics, folder / "supernet.safetensors", ignore, True, checkpoints, folder / "stop"
        )
        digests = {layer: digest for result in results for layer, digest in result.digests.items()}
        cuts = results[0].cuts
        rows = [row for result in results for row in result.rows]
        memory = [result.peak_memory for result in results]
    else:
        recorder = Recorder(config.training.device)
        with deterministic(config.training.threads, config.training.device):
            reset_peak_memory(config.training.device)
            digests, cuts = _train_here(metrics, CheckpointFolder(checkpoints), config, splits, recorder)
        rows = recorder.rows
        memory = [peak_memory(config.training.device)]
    losses = [line["loss"] for line in read_lines(metrics)]
    return Trained(Bits(digests, losses), cuts, rows, memory)


def _train_here(
    metrics: Path, checkpoints: CheckpointFolder, config: RunConfig, splits: Splits, recorder: Recorder
) -> tuple[dict[str, str], list[int]]:
    """Train with all stages in this process; return digests and cuts."""
    components, settings = build_components(config), config.executor.checkpoint
    checkpoint = checkpoints.latest()
    keep_lines(metrics, checkpoint.subnet if checkpoint is not None else 0)
    gatekeeper = Gatekeeper(settings, contract_of(config, components.executor))
    prepared = prepare_trainer(config, components, splits, checkpoint=checkpoint, gatekeeper=gatekeeper)
    with JsonLines(metrics) as log:

        def on_subnet(record: SubnetRecord) -> None:
            log.append({"index": record.index, "loss": record.loss})

        def on_cut(cut: Cut) -> None:
            checkpoints.write_part(cut.subnet, 0, prepared.trainer.own_layers())
            checkpoints.finish(cut.subnet, 1, cut.sampler, settings.keep)

        prepared.trainer.run(on_subnet, recorder, on_cut)
    return layer_digests(prepared.trainer), sorted(gatekeeper.cuts)


def find_difference(expected: Bits, found: Bits) -> str:
    """Return the first subnet whose loss differs and the first layer whose bits differ; empty if none does."""
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
