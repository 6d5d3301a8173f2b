"""The report's section on the search: objectives over time, trade-offs, surviving options, and failures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from naspipe.report import figures
from naspipe.report.hypervolume import hypervolume_figure, hypervolume_history
from naspipe.report.importance import decision_importances, importance_figure, importance_refusal
from naspipe.report.markup import note, plot, problem, table
from naspipe.report.options import option_survival
from naspipe.report.records import read_trials
from naspipe.report.table import Column, Table, number
from naspipe.search.selection import rank_by_knee, sort_into_fronts
from naspipe.search.trial import Trial, complete_trials, pareto_front

if TYPE_CHECKING:
    from naspipe.results.view import RunView
    from naspipe.search.objective import Objective
    from naspipe.space import SearchSpace

MAX_ROWS = 30
"""Rows of a table of trials."""

ARCHITECTURE = Column("architecture", wrap="anywhere")

SURVIVORS = 4
"""Whole fronts survive until one complete trial in this many does."""


def search(run: RunView) -> Iterator[str]:
    """Yield the trials: each objective over time, trade-offs, the options of the best, and failures."""
    space, objectives = run.components.space, run.components.objectives
    trials, damage = read_trials(run)
    yield problem(damage)
    if not trials:
        yield note("No architecture has been evaluated yet.")
        return
    texts = {trial.index: space.format(trial.architecture) for trial in trials}
    best, ended = None, ""
    if run.folder.best_architecture.exists():
        found = run.folder.best_trial()
        best, ended = found.trial, f" The search ended early: {found.note}." if found.note else ""
    failed = [trial for trial in trials if trial.reason is not None]
    budget = run.config.search.budget.trials
    yield note(
        f"{len(trials):,}{f' of {budget:,}' if budget else ''} architectures evaluated by "
        f"{run.config.search.strategy.name}, with the supernet's weights; {len(failed):,} failed.{ended}"
    )
    missing = trials[-1].index + 1 - len(trials)
    if missing > 0:
        yield note(f"Of the trials up to number {trials[-1].index:,}, {missing:,} are missing: they were not finished.")
    if len(failed) < len(trials):
        for objective in objectives:
            figure = figures.search_history(trials, objective, texts, best)
            caption = f"{objective.name} of the evaluated architectures, in the order of evaluation."
            yield plot(figure, f"search-{objective.name}", caption[0].upper() + caption[1:])
        if len(objectives) > 1:
            yield from _trade_offs(trials, objectives, texts, best)
        yield from _survival(space, trials, objectives)
        yield from _importance(space, trials, objectives)
    if failed:
        rows = [(trial.index, trial.reason, texts[trial.index]) for trial in failed]
        yield table(Table(("trial", "reason", ARCHITECTURE), rows, "Trials that failed.").first(MAX_ROWS))


def _trade_offs(
    trials: Sequence[Trial], objectives: Sequence[Objective], texts: Mapping[int, str], best: int | None
) -> Iterator[str]:
    """Yield the first objective against each other one, the hypervolume, and the Pareto front."""
    for other in objectives[1:]:
        figure = figures.pareto_figure(trials, objectives, other, texts, best)
        caption = f"Trade-off between {objectives[0].name} and {other.name}"
        if len(objectives) > 2:
            caption += f"; the front is that of all {len(objectives)} objectives"
        chosen = "" if best is None else f" Chosen is the best in {objectives[0].name}."
        yield plot(figure, f"pareto-{other.name}", f"{caption}.{chosen}")
    names = [objective.name for objective in objectives]
    history = hypervolume_history(trials, objectives)
    point = ", ".join(f"{name} {number(value)}" for name, value in zip(names, history.reference, strict=True))
    yield plot(
        hypervolume_figure(history),
        "hypervolume",
        "Hypervolume dominated by the architectures evaluated so far, as a share of the box between the best value of "
        f"each objective and the reference point ({point}), which lies a tenth of an objective's range beyond its "
        "worst value.",
    )
    ranked = rank_by_knee(trials, objectives)
    marks = {best: "chosen", ranked[0].index: "knee"}
    if ranked[0].index == best:
        marks = {best: "chosen, knee"}
    rows = [
        (t.index, marks.get(t.index), *(t.metrics[name] for name in names), texts[t.index])
        for t in pareto_front(trials, objectives)
    ]
    yield table(Table(("trial", "", *names, ARCHITECTURE), rows, "The Pareto front.").first(MAX_ROWS))


def _survival(space: SearchSpace, trials: Sequence[Trial], objectives: Sequence[Objective]) -> Iterator[str]:
    """Yield how the shares of the options among the best differ from those among all."""
    complete = complete_trials(trials)
    survivors: list[Trial] = []
    for front in sort_into_fronts(complete, objectives):
        if SURVIVORS * len(survivors) >= len(complete):
            break
        survivors.extend(front)
    if len(survivors) == len(complete):
        yield note("Which options survive is not shown: no complete trial is worse than the others.")
        return
    which = f"by {objectives[0].name}" if len(objectives) == 1 else "by Pareto fronts"
    yield plot(
        option_survival(space, [t.architecture for t in complete], [t.architecture for t in survivors]),
        "survival",
        f"Options that survive: the share of each among the best {len(survivors):,} architectures ({which}) minus that "
        f"among all {len(complete):,} evaluated, in percentage points.",
    )


def _importance(space: SearchSpace, trials: Sequence[Trial], objectives: Sequence[Objective]) -> Iterator[str]:
    """Yield how much each decision matters to each objective, or why that is not known."""
    refusal = importance_refusal(space, trials)
    if refusal:
        yield note(refusal)
        return
    found = decision_importances(space, trials, objectives)
    conditional = sum(decision.parent is not None for decision in space.decisions)
    for objective in objectives:
        importances = found.get(objective.name)
        if importances is None:
            yield note(f"How much each decision matters to {objective.name} is not known: every trial has the same.")
            continue
        caption = (
            f"How much each decision matters to {objective.name}: mean decrease of impurity in a random forest fitted "
            "to the complete trials, normalised to a sum of 1; with few trials a hint only."
        )
        if conditional:
            caption += " Decisions that exist in some architectures only are left out."
        yield plot(importance_figure(importances), f"importance-{objective.name}", caption)
