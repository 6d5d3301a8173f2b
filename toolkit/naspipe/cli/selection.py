"""The table of ``naspipe report RUN --best``: architectures chosen from a run's trials."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from naspipe.cli.output import say, show_table
from naspipe.errors import NaspipeWarning, RunFolderError
from naspipe.report.records import read_trials
from naspipe.report.table import Column, Table
from naspipe.search.conditions import parse_conditions
from naspipe.search.selection import KNEE, best_trials, metrics_of, pick_trials, satisfying
from naspipe.search.trial import complete_trials

if TYPE_CHECKING:
    from naspipe.results.view import RunView

BEST = 10
"""Trials that are printed by default."""


def show_selection(run: RunView, best: int | None, where: Sequence[str], pick: str | None) -> None:
    """Print the trials of a run that satisfy conditions, the best first.

    Args:
        run: A run that is finished, running or interrupted.
        best: How many trials; by default one with ``pick``, else ``BEST``.
        where: Conditions that the trials must satisfy.
        pick: "knee", an objective's name, or None for an order by Pareto fronts.

    Raises:
        RunFolderError: No trial is complete yet.
        InputError: A condition or ``pick`` is wrong, or no trial satisfies the conditions.
    """
    objectives = run.components.objectives
    trials, damage = read_trials(run)
    if damage:
        warnings.warn(damage, NaspipeWarning, stacklevel=2)
    if not complete_trials(trials):
        raise RunFolderError(
            f"{run.path} has no complete trial to show yet: {len(trials):,} were evaluated, and all failed."
            if trials
            else f"{run.path} has no trial to show yet. Run `naspipe search {run.folder.quoted}` first."
        )
    conditions = parse_conditions(where, metrics_of(trials))
    found = satisfying(trials, conditions)
    if pick is None:
        shown = best_trials(found, objectives, BEST if best is None else best)
    else:
        shown = pick_trials(found, objectives, pick, 1 if best is None else best)
    names = [objective.name for objective in objectives]
    others = [name for name in metrics_of(shown) if name not in names]
    numbers = [Column(name, right=True, wrap="never", decimals=6) for name in ("trial", *names, *others)]
    table = Table((*numbers, Column("architecture", wrap="anywhere")))
    for trial in shown:
        metrics = [trial.metrics.get(name) for name in (*names, *others)]
        table.add(str(trial.index), *metrics, run.components.space.format(trial.architecture))
    show_table(table)
    given = f" that satisfy {' and '.join(map(str, conditions))}" if conditions else ""
    say(f"{len(shown):,} of {len(found):,} complete trials{given}, {_order(pick, names)}.")


def _order(pick: str | None, names: Sequence[str]) -> str:
    if pick == KNEE:
        return "the knee of their Pareto front first"
    if pick is not None or len(names) == 1:
        return f"the best in {pick or names[0]} first"
    return f"by Pareto fronts, in each the best in {names[0]} first"
