"""Verification: the same subnets trained under several executors and layouts, compared bit for bit."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from naspipe.components import as_config, build_components
from naspipe.config.schema import RunConfig
from naspipe.errors import InputError
from naspipe.files import read_lines
from naspipe.pipeline.contract import Contract
from naspipe.pipeline.plan import Plan
from naspipe.pipeline.validator import Violation, find_violations
from naspipe.planning import check_layout, prepare_planning
from naspipe.runs.progress import ignore
from naspipe.simulation import parse_executor, split_executor
from naspipe.tasks.data import Splits
from naspipe.training.determinism import deterministic
from naspipe.training.loop import SubnetRecord
from naspipe.training.profiling import settled_costs
from naspipe.training.recorder import Recorder, trace_of
from naspipe.training.setup import layer_digests, peak_memory, prepare_trainer, reset_peak_memory


@dataclass(frozen=True)
class Outcome:
    """What a training left.

    Attributes:
        digests: Digest of every layer: weights, optimizer state and version.
        losses: Loss of every subnet; None where it was not finite.
        trace: The plan with measured times and the versions seen.
        peak_memory: Peak resident memory of each process, in MiB; on GPUs the memory that tensors took there.
    """

    digests: dict[str, str]
    losses: list[float | None]
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
    first = ("sequential", 1, "in-process")
    rest = [(e, s, t) for t in transports for e in executors for s in stages if (e, s, t) != first]
    combinations = [first, *rest]
    for combination in combinations:
        one = configure(config, *combination, subnets)
        check_layout(one, build_components(one))
    splits = build_components(config).task.load(config.seed)
    references: dict[str, tuple[str, Outcome]] = {}
    with settled_costs(config, splits) as settled:
        for executor, count, transport in combinations:
            outcome = train_once(configure(settled, executor, count, transport, subnets), splits)
            name = f"{executor} on {count} stage{'s' if count > 1 else ''}, {transport}"
            kind = _equals(outcome.trace.contract)
            reference, difference = "", ""
            if kind in references:
                reference, expected = references[kind]
                difference = find_difference(expected, outcome)
            elif kind:
                references[kind] = (name, outcome)
            violations = find_violations(outcome.trace)
            yield Check(executor, count, transport, outcome, violations, reference, difference)


def _equals(contract: Contract) -> str:
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


def train_once(config: RunConfig, splits: Splits) -> Outcome:
    """Train a supernet as a configuration says, and keep nothing on disk.

    Raises:
        TrainingError: It cannot go on.
    """
    components = build_components(config)
    plan = prepare_planning(config, components, splits).plan()
    if config.executor.transport == "distributed":
        from naspipe.training.processes import train_in_processes

        with tempfile.TemporaryDirectory() as folder:
            metrics = Path(folder) / "metrics.jsonl"
            results = train_in_processes(
                config, Path(folder), metrics, Path(folder) / "supernet.safetensors", ignore, record=True
            )
            losses = [line["loss"] for line in read_lines(metrics)]
        digests = {layer: digest for result in results for layer, digest in result.digests.items()}
        rows = [row for result in results for row in result.rows]
        memory = [result.peak_memory for result in results]
    else:
        records: list[SubnetRecord] = []
        recorder = Recorder(config.training.device)
        with deterministic(config.training.threads, config.training.device):
            reset_peak_memory(config.training.device)
            trainer = prepare_trainer(config, build_components(config), splits).trainer
            trainer.run(records.append, recorder)
            digests = layer_digests(trainer)
        losses = [record.loss for record in records]
        rows = recorder.rows
        memory = [peak_memory(config.training.device)]
    return Outcome(digests, losses, trace_of(plan, rows), memory)


def find_difference(expected: Outcome, found: Outcome) -> str:
    """Return the first subnet whose loss differs and the first layer whose bits differ; empty if none does."""
    parts = []
    for index, (one, other) in enumerate(zip(expected.losses, found.losses, strict=True)):
        if one != other:
            parts.append(f"loss of subnet {index}: {other!r} instead of {one!r}")
            break
    for layer, digest in expected.digests.items():
        if found.digests.get(layer) != digest:
            parts.append(f"layer {layer}")
            break
    return "; ".join(parts)
