"""Verification of resuming: trainings that go on from checkpoints in other layouts, compared bit for bit."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from naspipe.components import build_components, contract_of
from naspipe.config.schema import RunConfig
from naspipe.errors import InputError
from naspipe.pipeline.contract import Contract
from naspipe.pipeline.validator import find_violations
from naspipe.tasks.data import Splits
from naspipe.training.checkpoint import CheckpointFolder
from naspipe.training.profiling import settled_costs
from naspipe.verification import (
    CHECKPOINTS,
    Bits,
    Check,
    Combination,
    Outcome,
    combine,
    configure,
    equals,
    find_difference,
    train_in,
    train_once,
    with_checkpoints,
)

PARTS = 4
"""A training is broken off after each of these parts but the last."""


@dataclass(frozen=True)
class Continuation:
    """A training that went on from a checkpoint, judged.

    Attributes:
        subnet: The index of the checkpoint: subnets below it were trained by another.
        heir: How what went on was laid out.
        bits: What it left.
        difference: How that differs from a training that was not broken off; empty if it does not.
    """

    subnet: int
    heir: Combination
    bits: Bits
    difference: str


@dataclass(frozen=True)
class ResumeCheck:
    """A training that wrote checkpoints, and what went on from each, judged.

    Attributes:
        writer: How the training was laid out.
        contract: What it keeps.
        written: The training, compared with one that wrote no checkpoints; None if it cannot write any.
        reference: What all must equal, for people; empty if nothing was trained.
        continuations: What went on.
        reason: Why nothing did; empty if something did.
    """

    writer: Combination
    contract: Contract
    written: Check | None
    reference: str
    continuations: list[Continuation]
    reason: str

    @property
    def kept(self) -> bool:
        """Whether nothing differs, and the contract was kept."""
        whole = self.written is None or self.written.kept
        return whole and not any(found.difference for found in self.continuations)


def verify_resuming(
    config: RunConfig,
    executors: Sequence[str],
    stages: Sequence[int],
    transports: Sequence[str],
    subnets: int | None = None,
) -> Iterator[ResumeCheck]:
    """Train under every combination, break off at several places, go on under others, and yield what came of it.

    Args:
        config: The configuration; as in ``verify``, but for when checkpoints are written.
        executors: Names, with options as ``gpipe:bulk=4``.
        stages: Numbers of stages.
        transports: ``in-process`` or ``distributed``.
        subnets: Subnets to train; by default the configuration's.

    Raises:
        InputError: A combination is wrong, or there are too few subnets; before anything is trained.
    """
    total = config.training.subnets if subnets is None else subnets
    if total < 2:
        raise InputError(
            f"a training must have at least 2 subnets to be broken off between them, but has {total}. Train more: "
            "--subnets."
        )
    combinations = combine(config, executors, stages, transports, total)
    splits = build_components(config).task.load(config.seed)
    with settled_costs(config, splits) as settled:
        configurations = {found: configure(settled, *found, total) for found in combinations}
        contracts = {found: contract_of(c, build_components(c).executor) for found, c in configurations.items()}
        references: dict[str, tuple[str, Outcome]] = {}
        for writer, contract in contracts.items():
            kind = equals(contract)
            if not kind:
                reason = f"cannot be resumed: under {contract} subnets read weights that are being changed meanwhile"
                yield ResumeCheck(writer, contract, None, "", [], reason)
                continue
            if kind not in references:
                references[kind] = (str(writer), train_once(configurations[writer], splits))
            group = [other for other in combinations if equals(contracts[other]) == kind]
            place = group.index(writer)
            # Others first; whoever has none goes on alone.
            heirs = [*group[place + 1 :], *group[:place]] or [writer]
            pairs = [(heir, configurations[heir]) for heir in heirs]
            yield _check(writer, configurations[writer], pairs, splits, *references[kind])


def _check(
    writer: Combination,
    config: RunConfig,
    heirs: Sequence[tuple[Combination, RunConfig]],
    splits: Splits,
    reference: str,
    expected: Outcome,
) -> ResumeCheck:
    """Train once, and go on from each checkpoint under the next heir."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "written"
        folder.mkdir()
        outcome = train_once(with_checkpoints(config, math.ceil(config.training.subnets / PARTS)), splits, folder)
        difference = find_difference(expected, outcome)
        written = Check(*writer, outcome, find_violations(outcome.trace), reference, difference)
        continuations = []
        for number, subnet in enumerate(reversed(CheckpointFolder(folder / CHECKPOINTS).indices())):
            heir, heir_config = heirs[number % len(heirs)]
            own = Path(temporary) / str(subnet)
            bits, difference = _go_on(folder, own, subnet, heir_config, splits, expected)
            continuations.append(Continuation(subnet, heir, bits, difference))
    contract = outcome.trace.contract
    reason = "" if continuations else f"{config.training.subnets} subnets cannot be cut under {contract}"
    return ResumeCheck(writer, contract, written, reference, continuations, reason)


def _go_on(
    written: Path, folder: Path, subnet: int, config: RunConfig, splits: Splits, expected: Bits
) -> tuple[Bits, str]:
    """Go on from one of the checkpoints, in a folder of its own; return what that left, and how it differs."""
    shutil.copytree(written, folder)
    checkpoints = CheckpointFolder(folder / CHECKPOINTS)
    for later in checkpoints.indices():
        if later > subnet:
            checkpoints.remove(later)
    trained = train_in(folder, with_checkpoints(config, None), splits)
    first = min(planned.action.subnet for planned, *_ in trained.rows)
    if first != subnet:
        # What begins anew is equal as well, but proves nothing.
        return trained.bits, f"it began with subnet {first} instead of {subnet}"
    return trained.bits, find_difference(expected, trained.bits)
