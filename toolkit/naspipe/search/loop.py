"""The search: ask, evaluate what is new, tell, until the budget is spent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from naspipe.errors import NaspipeError, SearchError
from naspipe.search.objective import Objective, read_metrics, require_objectives
from naspipe.search.strategy import Outcome, Strategy
from naspipe.search.trial import Trial
from naspipe.space import Architecture, SearchSpace
from naspipe.usercode import calling

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
        SearchError: Every trial failed (the first reason is shown), or the strategy failed, or proposed
            nothing or what is no architecture of the space.
    """
    recorded = {trial.architecture: trial for trial in known}
    trials: dict[Architecture, Trial] = {}
    repeats = 0
    note = ""
    while len(trials) < budget and not note:
        outcomes = []
        for checked in _ask(strategy, space, f"after {len(trials)} of {budget} trials"):
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
            with calling(f"strategy {type(strategy).__name__}: tell()", SearchError):
                strategy.tell(outcomes)
        note = _used_up(space, len(trials), repeats)
    done = list(trials.values())
    failed = [trial for trial in done if trial.reason is not None]
    if len(failed) == len(done):
        reason = f" The first reason: {failed[0].reason}." if failed else ""
        raise SearchError(f"all {len(done)} trials of the search failed.{reason}")
    return SearchResult(done, note if len(done) < budget else "")


def _ask(strategy: Strategy, space: SearchSpace, when: str) -> list[Architecture]:
    """Return what a strategy proposes, as architectures of the space."""
    what = f"strategy {type(strategy).__name__}: ask()"
    with calling(what, SearchError):
        proposals: object = strategy.ask()
    if not isinstance(proposals, (list, tuple)) or not proposals:
        raise SearchError(f"{what} must return a list of at least one architecture, but returned {proposals!r} {when}.")
    try:
        return [space.architecture(proposal) for proposal in proposals]
    except NaspipeError as error:
        raise SearchError(f"{what} must return architectures of the space, but: {error}") from error


def _evaluate(index: int, architecture: Architecture, objectives: Sequence[Objective], evaluate: Evaluate) -> Trial:
    try:
        metrics = evaluate(architecture)
        require_objectives(metrics, objectives)
        numbers = read_metrics(metrics)
    except Exception as error:
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        return Trial(index, architecture, {}, reason=f"{kind}{error}")
    return Trial(index, architecture, numbers)


def _used_up(space: SearchSpace, count: int, repeats: int) -> str:
    if not space.has_rule and count == space.size:
        return f"the space is used up: all of its {count} architectures have been evaluated"
    if repeats >= MAX_REPEATS:
        return (
            f"the space seems used up: the last {repeats} architectures proposed had all been evaluated "
            f"before, {count} in all"
        )
    return ""
