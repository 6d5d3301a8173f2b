"""``naspipe verify``: the same training under several executors, compared bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import typer
from rich.console import Console
from rich.table import Table

from naspipe.config.schema import RunConfig
from naspipe.pipeline.validator import explain
from naspipe.verification import Check, verify

SHOWN = 3
"""Violations printed of each training."""


def show_verification(
    config: RunConfig,
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
    for check in verify(config, executors, stages, transports, subnets):
        kept = kept and check.kept
        trace = check.outcome.trace
        table.add_row(
            check.executor, str(check.stages), check.transport, str(trace.contract), f"{trace.bubble:.3f}",
            _digest(check), _result(check),
        )  # fmt: skip
        details += [explain(trace, violation) for violation in check.violations[:SHOWN]]
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table)
    for detail in details:
        typer.echo(detail)
    typer.echo("Every contract was kept." if kept else "Not every contract was kept.")
    return kept


def _digest(check: Check) -> str:
    text = repr(sorted(check.outcome.digests.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _result(check: Check) -> str:
    if check.violations:
        return f"BROKEN: {len(check.violations)} violations of its contract"
    if check.difference:
        return f"DIFFERS from {check.reference}: {check.difference}"
    if check.reference:
        return f"equals {check.reference}"
    if check.outcome.trace.contract.kind == "stale":
        return "kept; results depend on the number of stages"
    return "kept; the reference"
