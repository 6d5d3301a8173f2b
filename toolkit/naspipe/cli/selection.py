"""The table of ``naspipe report RUN --best``: architectures chosen from a run's trials."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from naspipe.cli.output import say
from naspipe.errors import NaspipeWarning, RunFolderError
from naspipe.report.records import read_trials
from naspipe.search.conditions import parse_conditions
from naspipe.search.selection import KNEE, best_trials, metrics_of, pick_trials, satisfying
from naspipe.search.trial import Trial, complete_trials

if TYPE_CHECKING:
    from naspipe.results.view import RunView

BEST = 10
"""Trials that are printed if it is not said how many."""


def show_selection(run: RunView, best: int | None, where: Sequence[str], pick: str | None) -> None:
    """Print the trials of a run that were asked for, the best first.

    Args:
        run: Finished, running or broken off.
        best: How many; by default one that is picked, or ``BEST``.
        where: Conditions that they must satisfy.
        pick: "knee", an objective's name, or None: by fronts.

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
    table = Table(box=None, pad_edge=False)
    for name in ("trial", *names, *others):
        table.add_column(Text(name), justify="right", no_wrap=True)
    table.add_column("architecture", overflow="fold")
    for trial in shown:
        cells = [_number(trial, name) for name in (*names, *others)]
        table.add_row(str(trial.index), *cells, Text(run.components.space.format(trial.architecture)))
    console = Console()
    # A pipe or a file has no width: nothing is broken into lines there.
    (console if console.is_terminal else Console(width=100_000)).print(table, crop=False)
    given = f" that satisfy {' and '.join(map(str, conditions))}" if conditions else ""
    say(f"{len(shown):,} of {len(found):,} complete trials{given}, {_order(pick, names)}.")


def _order(pick: str | None, names: Sequence[str]) -> str:
    if pick == KNEE:
        return "the knee of their Pareto front first"
    if pick is not None or len(names) == 1:
        return f"the best in {pick or names[0]} first"
    return f"by Pareto fronts, in each the best in {names[0]} first"


def _number(trial: Trial, name: str) -> str:
    value = trial.metrics.get(name)
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
