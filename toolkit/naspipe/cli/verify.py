"""``naspipe verify``: the same training under several executors, compared bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import typer
from rich.console import Console
from rich.table import Table

from naspipe.pipeline.validator import explain
from naspipe.training.context import RunContext
from naspipe.verification.equality import Bits, Verdict, verify
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
    """Train, print a table and what differs; tell whether every contract was kept."""
    columns = ("executor", "stages", "transport", "contract", "bubble", "digest", "result")
    table = Table(*columns, box=None, pad_edge=False)
    kept = True
    details = []
    for check in verify(context, executors, stages, transports, subnets):
        kept = kept and check.kept
        trace = check.outcome.trace
        table.add_row(
            check.executor, str(check.stages), check.transport, str(trace.contract), f"{trace.bubble:.3f}",
            _digest(check.outcome), _result(check),
        )  # fmt: skip
        details += [explain(trace, violation) for violation in check.violations[:SHOWN]]
    _show(table, details)
    typer.echo("Every contract was kept." if kept else "Not every contract was kept.")
    return kept


def show_resume_verification(
    context: RunContext,
    executors: Sequence[str],
    stages: Sequence[int],
    transports: Sequence[str],
    subnets: int | None,
) -> bool:
    """Break trainings off and go on, print a table and what differs; tell whether nothing does."""
    columns = ("executor", "stages", "transport", "contract", "checkpoints", "digest", "result")
    table = Table(*columns, box=None, pad_edge=False)
    kept = True
    details = []
    for check in verify_resuming(context, executors, stages, transports, subnets):
        kept = kept and check.kept
        start = (check.writer.executor, str(check.writer.stages), check.writer.transport, str(check.contract))
        if check.written is None:
            table.add_row(*start, "none", "", check.reason)
            continue
        trace = check.written.outcome.trace
        details += [explain(trace, violation) for violation in check.written.violations[:SHOWN]]
        cuts = ", ".join(str(found.subnet) for found in check.continuations)
        result = "; ".join(filter(None, [_result(check.written), check.reason]))
        table.add_row(*start, f"writes {cuts}" if cuts else "none", _digest(check.written.outcome), result)
        for found in check.continuations:
            result = _comparison(check.reference, found.difference)
            executor, count, transport = found.heir
            table.add_row(
                f"  {executor}", str(count), transport, "", f"from {found.subnet}", _digest(found.bits), result
            )
    _show(table, details)
    typer.echo(
        "What went on from checkpoints equals what was not broken off." if kept else "Something differs, as said above."
    )
    return kept


def _show(table: Table, details: Sequence[str]) -> None:
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table)
    for detail in details:
        typer.echo(detail)


def _digest(bits: Bits) -> str:
    text = repr(sorted(bits.digests.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _result(check: Verdict) -> str:
    if check.violations:
        return f"BROKEN: {len(check.violations)} violations of its contract"
    if check.reference:
        return _comparison(check.reference, check.difference)
    if not check.outcome.trace.contract.equal_runs:
        return "kept; results depend on the number of stages"
    return "kept; the reference"


def _comparison(reference: str, difference: str) -> str:
    return f"DIFFERS from {reference}: {difference}" if difference else f"equals {reference}"
