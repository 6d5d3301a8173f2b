"""Verification of resuming: trainings that are resumed from checkpoints in other layouts, compared bit for bit."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from naspipe.config.schema import RunConfig
from naspipe.errors import InputError
from naspipe.pipeline.contract import Contract
from naspipe.pipeline.validator import find_violations
from naspipe.training.checkpoint import CheckpointFolder
from naspipe.training.context import RunContext
from naspipe.training.files import TrainingFiles
from naspipe.training.profiling import measure_costs
from naspipe.training.progress import Watch, ignore
from naspipe.training.supernet_training import train_supernet
from naspipe.verification.equality import (
    Bits,
    Combination,
    TracedTraining,
    Verdict,
    combine,
    configure,
    find_difference,
    read_bits,
    train_once,
    with_checkpoints,
)

INTERVALS = 4
"""Number of equal intervals between checkpoints; a training is resumed from each checkpoint."""


@dataclass(frozen=True)
class Continuation:
    """The verdict on a training that was resumed from a checkpoint.

    Attributes:
        subnet: The index of the checkpoint: the writer has trained the subnets below it.
        heir: The combination that resumed.
        bits: The results after the resume.
        difference: How they differ from those of an uninterrupted training; empty if they do not.
    """

    subnet: int
    heir: Combination
    bits: Bits
    difference: str


@dataclass(frozen=True)
class ResumeVerdict:
    """The verdict on a training that wrote checkpoints, and on those that were resumed from them.

    Attributes:
        writer: The combination that wrote the checkpoints.
        contract: Its contract.
        written: The verdict on its training, compared with a training without checkpoints; None if it cannot write
            any.
        reference: The training that all must equal, for people; empty if nothing was trained.
        continuations: The verdicts on the resumed trainings.
        reason: Why no training was resumed; empty if one was.
    """

    writer: Combination
    contract: Contract
    written: Verdict | None
    reference: str
    continuations: list[Continuation]
    reason: str

    @property
    def kept(self) -> bool:
        """Whether nothing differs and the contract was kept."""
        whole = self.written is None or self.written.kept
        return whole and not any(found.difference for found in self.continuations)


def verify_resuming(
    config: RunContext | RunConfig,
    executors: Sequence[str],
    stages: Sequence[int],
    transports: Sequence[str],
    subnets: int | None = None,
    watch: Watch = ignore,
) -> Iterator[ResumeVerdict]:
    """Train under every combination, resume from its checkpoints under others, and yield the verdicts.

    Args:
        config: The run; as in ``verify``, but its checkpoint settings have no effect.
        executors: Names, with options as ``gpipe:bulk=4``.
        stages: Numbers of stages.
        transports: ``in-process`` or ``distributed``.
        subnets: Number of subnets to train; by default the configuration's.
        watch: Called with the progress of measurements and trainings.

    Raises:
        InputError: A combination is wrong, or there are too few subnets; before anything is trained.
    """
    context = RunContext.load(config)
    total = context.config.training.subnets if subnets is None else subnets
    if total < 2:
        raise InputError(
            f"a training must have at least 2 subnets to be interrupted between them, but has {total}. Train more: "
            "--subnets."
        )
    combinations = combine(context, executors, stages, transports, total, watch)
    measure_costs(context, watch=watch)
    contexts = {found: configure(context, *found, total) for found in combinations}
    references: dict[str, tuple[str, TracedTraining]] = {}
    for writer, one in contexts.items():
        kind = one.contract.equal_runs
        if not kind:
            reason = f"cannot be resumed: under {one.contract} subnets read weights that are being changed meanwhile"
            yield ResumeVerdict(writer, one.contract, None, "", [], reason)
            continue
        if kind not in references:
            references[kind] = (str(writer), train_once(one, watch=watch))
        group = [other for other in combinations if contexts[other].contract.equal_runs == kind]
        place = group.index(writer)
        # Others first; a combination without others resumes its own training.
        heirs = [*group[place + 1 :], *group[:place]] or [writer]
        yield _check(writer, one, [(heir, contexts[heir]) for heir in heirs], *references[kind], watch)


def _check(
    writer: Combination,
    context: RunContext,
    heirs: Sequence[tuple[Combination, RunContext]],
    reference: str,
    expected: TracedTraining,
    watch: Watch,
) -> ResumeVerdict:
    """Train once, and resume from each checkpoint under the next heir."""
    subnets = context.config.training.subnets
    with tempfile.TemporaryDirectory(prefix="naspipe-") as temporary:
        files = TrainingFiles(Path(temporary) / "written")
        files.root.mkdir()
        outcome = train_once(with_checkpoints(context, math.ceil(subnets / INTERVALS)), files.root, watch)
        difference = find_difference(expected, outcome)
        written = Verdict(*writer, outcome, find_violations(outcome.trace), reference, difference)
        continuations = []
        for number, subnet in enumerate(reversed(CheckpointFolder(files.checkpoints).indices())):
            heir, heir_context = heirs[number % len(heirs)]
            own = TrainingFiles(Path(temporary) / str(subnet))
            bits, difference = _resume(files, own, subnet, heir_context, expected, watch)
            continuations.append(Continuation(subnet, heir, bits, difference))
    contract = outcome.trace.contract
    reason = "" if continuations else f"{subnets} subnets cannot be divided under {contract}"
    return ResumeVerdict(writer, contract, written, reference, continuations, reason)


def _resume(
    written: TrainingFiles, files: TrainingFiles, subnet: int, context: RunContext, expected: Bits, watch: Watch
) -> tuple[Bits, str]:
    """Resume from one of the checkpoints in another folder; return the bits, and how they differ."""
    shutil.copytree(written.root, files.root)
    checkpoints = CheckpointFolder(files.checkpoints)
    for later in checkpoints.indices():
        if later > subnet:
            checkpoints.remove(later)
    result = train_supernet(with_checkpoints(context, None), files, record=True, watch=watch)
    bits = read_bits(result, files)
    first = min(planned.action.subnet for planned, *_ in result.actions)
    if first != subnet:
        # A training that begins again gives equal bits as well, but proves nothing.
        return bits, f"it began with subnet {first} instead of {subnet}"
    return bits, find_difference(expected, bits)
