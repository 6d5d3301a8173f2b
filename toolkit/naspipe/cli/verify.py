"""``naspipe verify``: the same training under several executors, compared bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from naspipe.cli.output import say, show_table, watching
from naspipe.pipeline.plan_index import Violation
from naspipe.pipeline.validator import explain
from naspipe.report.table import Table
from naspipe.training.context import RunContext
from naspipe.verification.equality import Bits, TracedTraining, Verdict, verify
from naspipe.verification.resume import verify_resuming

SHOWN = 3
"""Violations printed of each training."""


def show_verification(
    context: RunContext,
    executors: Sequence[str],
    stages: Sequence[int],
    transports: Sequence[str],
    subnets: int | None,
) -> bool:
    """Train, and print a table, violations and differences; return whether every contract was kept."""
    table = Table(("executor", "stages", "transport", "contract", "bubble", "digest", "result"))
    kept = True
    details = []
    with watching(data=True) as watch:
        for verdict in verify(context, executors, stages, transports, subnets, watch):
            kept = kept and verdict.kept
            trace = verdict.outcome.trace
            table.add(
                verdict.executor, str(verdict.stages), verdict.transport, str(trace.contract), f"{trace.bubble:.3f}",
                _digest(verdict.outcome), _result(verdict),
            )  # fmt: skip
            details += _explain(verdict.outcome, verdict.violations)
    _show(table, details)
    say("Every contract was kept." if kept else "Not every contract was kept.")
    return kept


def show_resume_verification(
    context: RunContext,
    executors: Sequence[str],
    stages: Sequence[int],
    transports: Sequence[str],
    subnets: int | None,
) -> bool:
    """Interrupt and resume trainings, and print a table, violations and differences; return whether nothing differs."""
    table = Table(("executor", "stages", "transport", "contract", "checkpoints", "digest", "result"))
    kept = True
    details = []
    with watching(data=True) as watch:
        for verdict in verify_resuming(context, executors, stages, transports, subnets, watch):
            kept = kept and verdict.kept
            writer, written = verdict.writer, verdict.written
            start = (writer.executor, str(writer.stages), writer.transport, str(verdict.contract))
            if written is None:
                table.add(*start, "none", "", verdict.reason)
                continue
            details += _explain(written.outcome, written.violations)
            indices = ", ".join(str(found.subnet) for found in verdict.continuations)
            result = "; ".join(filter(None, [_result(written), verdict.reason]))
            table.add(*start, f"writes {indices}" if indices else "none", _digest(written.outcome), result)
            for found in verdict.continuations:
                result = _comparison(verdict.reference, found.difference)
                executor, count, transport = found.heir
                origin = f"from {found.subnet}"
                table.add(f"  {executor}", str(count), transport, "", origin, _digest(found.bits), result)
    _show(table, details)
    say(
        "The trainings that were resumed from checkpoints equal those that were not interrupted."
        if kept
        else "Something differs, as said above."
    )
    return kept


def _explain(training: TracedTraining, violations: Sequence[Violation]) -> list[str]:
    return [explain(training.trace, violation) for violation in violations[:SHOWN]]


def _show(table: Table, details: Sequence[str]) -> None:
    show_table(table)
    for detail in details:
        say(detail)


def _digest(bits: Bits) -> str:
    text = repr(sorted(bits.digests.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _result(verdict: Verdict) -> str:
    if verdict.violations:
        return f"BROKEN: {len(verdict.violations)} violations of its contract"
    if verdict.reference:
        return _comparison(verdict.reference, verdict.difference)
    if not verdict.outcome.trace.contract.equal_runs:
        return "kept; results depend on the number of stages"
    return "kept; the reference"


def _comparison(reference: str, difference: str) -> str:
    return f"DIFFERS from {reference}: {difference}" if difference else f"equals {reference}"
