"""The search: ask, evaluate what is new, tell, until the budget is spent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from naspipe.errors import SearchError
from naspipe.search.objective import Objective, read_values
from naspipe.search.strategy import Outcome, Strategy
from naspipe.search.trial import Trial
from naspipe.space import Architecture, SearchSpace

MAX_REPEATS = 1_000
"""Known architectures proposed in a row before a space counts as used up."""

Evaluate = Callable[[Architecture], dict[str, object]]


@dataclass(frozen=True)
class SearchResult:
    """The end of a search.

    Attributes:
        trials: Every evaluated architecture, in order.
        note: Why it ended before its budget was spent, or an empty text.
    """

    trials: list[Trial]
    note: str


def run_search(
    space: SearchSpace,
    strategy: Strategy,
    objectives: Sequence[Objective],
    budget: int,
    evaluate: Evaluate,
    on_trial: Callable[[Trial], None],
    known: Sequence[Trial] = (),
) -> SearchResult:
    """Search a space; no architecture is evaluated twice.

    Args:
        space: What is searched.
        strategy: Proposes architectures; it has been started.
        objectives: What is optimised.
        budget: Number of architectures to evaluate.
        evaluate: Gives the metrics of an architecture. A trial whose evaluation raises, or whose
            objectives are no finite numbers, has failed; the search goes on.
        on_trial: Called with each new trial.
        known: Trials of an earlier, broken-off search with the same settings: they are looked up
            instead of evaluated, so that the search goes on where it stopped.

    Raises:
        SearchError: Every trial failed (the first reason is shown), or the strategy proposes nothing.
        ArchitectureError: The strategy proposes what is no architecture of the space.
    """
    recorded = {trial.architecture: trial for trial in known}
    trials: dict[Architecture, Trial] = {}
    repeats = 0
    note = ""
    while len(trials) < budget and not note:
        outcomes = []
        proposals = strategy.ask()
        if not proposals:
            raise SearchError(
                f"strategy {type(strategy).__name__} must propose at least one architecture, but proposed "
                f"none after {len(trials)} of {budget} trials."
            )
        for architecture in proposals:
            checked = space.architecture(architecture)
            trial = trials.get(checked)
            repeats = repeats + 1 if trial else 0
            if trial is None:
                if len(trials) == budget:
                    break
                trial = recorded.get(checked)
                if trial is None:
                    trial = _evaluate(len(trials), checked, objectives, evaluate)
                    on_trial(trial)
                trials[checked] = trial
            outcomes.append(Outcome(checked, trial.values(objectives)))
        else:
            strategy.tell(outcomes)
        note = _used_up(space, len(trials), repeats)
    done = list(trials.values())
    failed = [trial for trial in done if trial.reason is not None]
    if len(failed) == len(done):
        reason = f" The first reason: {failed[0].reason}." if failed else ""
        raise SearchError(f"all {len(done)} trials of the search failed.{reason}")
    return SearchResult(done, note if len(done) < budget else "")


def _evaluate(
    index: int, architecture: Architecture, objectives: Sequence[Objective], evaluate: Evaluate
) -> Trial:
    try:
        metrics = evaluate(architecture)
        read_values(metrics, objectives)
    except Exception as error:
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        return Trial(index, architecture, {}, reason=f"{kind}{error}")
    finite = {
        name: value
        for name, value in metrics.items()
        if isinstance(value, (int, float)) and math.isfinite(value)
    }
    return Trial(index, architecture, finite)


def _used_up(space: SearchSpace, count: int, repeats: int) -> str:
    if not space.has_rule and count == space.size:
        return f"the space is used up: all of its {count} architectures have been evaluated"
    if repeats >= MAX_REPEATS:
        return (
            f"the space seems used up: the last {repeats} architectures proposed had all been evaluated "
            f"before, {count} in all"
        )
    return ""
