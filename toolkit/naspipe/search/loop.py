"""The search loop: ask, evaluate new architectures, tell, until the budget is spent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from naspipe.config.schema import BudgetConfig
from naspipe.errors import NaspipeError, RunFolderError, SearchError
from naspipe.search.objective import Objective, read_metrics, require_objectives
from naspipe.search.strategy import Outcome, Strategy
from naspipe.search.trial import Trial
from naspipe.space import Architecture, SearchSpace
from naspipe.usercode import calling

MAX_REPEATS = 1_000
"""Repeated proposals in a row after which a space counts as exhausted."""

Metrics = dict[str, object]

Evaluate = Callable[[Sequence[Architecture]], Iterable[tuple[int, Metrics | Exception]]]
"""Yields for each architecture its index in the sequence, and its metrics or the error; in any order."""


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        trials: All trials, in order.
        note: The reason if it ended before its budget was spent, or an empty text.
    """

    trials: list[Trial]
    note: str


def one_by_one(evaluate: Callable[[Architecture], Metrics]) -> Evaluate:
    """Turn an evaluation of one architecture into one of several; an error becomes the result of its architecture."""

    def evaluate_all(architectures: Sequence[Architecture]) -> Iterator[tuple[int, Metrics | Exception]]:
        for place, architecture in enumerate(architectures):
            try:
                metrics: Metrics | Exception = evaluate(architecture)
            except Exception as error:
                metrics = error
            yield place, metrics

    return evaluate_all


def run_search(
    space: SearchSpace,
    strategy: Strategy,
    objectives: Sequence[Objective],
    budget: BudgetConfig,
    evaluate: Evaluate,
    on_trial: Callable[[Trial], None],
    known: Sequence[Trial] = (),
    seconds: Callable[[], float] = lambda: 0.0,
) -> SearchResult:
    """Search a space; no architecture is evaluated twice.

    Args:
        space: The search space.
        strategy: A strategy that has been started.
        objectives: The objectives.
        budget: When to end.
        evaluate: Gives the metrics of the new architectures of a generation. A trial fails if its evaluation raises an
            error, or if an objective is not a finite number; the search continues.
        on_trial: Called with each new trial, in order. If the evaluation is interrupted, it is also called with the
            finished trials that come after an unfinished one.
        known: Trials of an earlier, interrupted search with the same settings. They are looked up instead of evaluated,
            so that the search resumes where it stopped.
        seconds: Returns the time that the search has taken so far, before interruptions too.

    Raises:
        SearchError: All trials failed (the message has the first reason); or the strategy failed, or proposed nothing,
            or something that is not an architecture of the space.
        RunFolderError: The strategy does not propose the known trials again.
    """
    recorded = {trial.index: trial for trial in known}
    trials: dict[Architecture, Trial] = {}
    generations = repeats = 0
    note = ""
    while not note:
        # The limit of time does not apply while known trials are repeated.
        replayed = len(trials) > max(recorded, default=-1)
        if _is_spent(budget, len(trials), generations, seconds() if replayed else 0.0):
            break
        proposals = _ask(strategy, space, f"after {len(trials)} trials")
        new: dict[Architecture, int] = {}
        for proposal in proposals:
            is_new = proposal not in trials and proposal not in new
            repeats = 0 if is_new else repeats + 1
            if is_new and len(trials) + len(new) == budget.trials:
                break
            if is_new:
                new[proposal] = len(trials) + len(new)
        _require_repetition(space, new, recorded)
        trials.update((a, recorded[index]) for a, index in new.items() if index in recorded)
        rest = [(a, index) for a, index in new.items() if index not in recorded]
        trials.update((trial.architecture, trial) for trial in _evaluate(rest, objectives, evaluate, on_trial))
        if all(proposal in trials for proposal in proposals):
            with calling(f"strategy {type(strategy).__name__}: tell()", SearchError):
                strategy.tell([Outcome(proposal, trials[proposal].values(objectives)) for proposal in proposals])
        generations += 1
        note = _exhausted(space, len(trials), repeats)
    done = sorted(trials.values(), key=lambda trial: trial.index)
    failed = [trial for trial in done if trial.reason is not None]
    if len(failed) == len(done):
        reason = f" The first reason: {failed[0].reason}." if failed else ""
        raise SearchError(f"all {len(done)} trials of the search failed.{reason}")
    return SearchResult(done, note if len(done) != budget.trials else "")


def _is_spent(budget: BudgetConfig, trials: int, generations: int, seconds: float) -> bool:
    return (
        trials == budget.trials
        or generations == budget.generations
        or (budget.seconds is not None and seconds >= budget.seconds)
    )


def _ask(strategy: Strategy, space: SearchSpace, when: str) -> list[Architecture]:
    """Ask a strategy, and return its proposals as architectures of the space."""
    what = f"strategy {type(strategy).__name__}: ask()"
    with calling(what, SearchError):
        proposals: object = strategy.ask()
    if not isinstance(proposals, (list, tuple)) or not proposals:
        raise SearchError(f"{what} must return a list of at least one architecture, but returned {proposals!r} {when}.")
    try:
        return [space.architecture(proposal) for proposal in proposals]
    except NaspipeError as error:
        raise SearchError(f"{what} must return architectures of the space, but: {error}") from error


def _require_repetition(space: SearchSpace, new: Mapping[Architecture, int], recorded: Mapping[int, Trial]) -> None:
    """Raise an error if a resumed search does not propose the recorded trials again."""
    for architecture, index in new.items():
        if index in recorded and recorded[index].architecture != architecture:
            raise RunFolderError(
                f"a search that is resumed must repeat its proposals, but trial {index} is now "
                f"{space.format(architecture)} and was {space.format(recorded[index].architecture)}. Has the code "
                "of the strategy, or of a library that it uses, changed? Undo that, or search in a new run."
            )


def _evaluate(
    new: Sequence[tuple[Architecture, int]],
    objectives: Sequence[Objective],
    evaluate: Evaluate,
    on_trial: Callable[[Trial], None],
) -> list[Trial]:
    """Evaluate architectures, and return their trials with these indices.

    ``on_trial`` gets them in order. If the evaluation is interrupted, it gets the finished trials that come after an
    unfinished one at the end.
    """
    trials: list[Trial] = []
    ahead: dict[int, Trial] = {}
    try:
        for place, metrics in evaluate([architecture for architecture, _ in new]) if new else ():
            architecture, index = new[place]
            ahead[place] = _as_trial(index, architecture, metrics, objectives)
            while len(trials) in ahead:
                trials.append(ahead.pop(len(trials)))
                on_trial(trials[-1])
    except BaseException:
        for place in sorted(ahead):
            on_trial(ahead[place])
        raise
    assert len(trials) == len(new), "every architecture is evaluated"
    return trials


def _as_trial(
    index: int, architecture: Architecture, metrics: Metrics | Exception, objectives: Sequence[Objective]
) -> Trial:
    try:
        if isinstance(metrics, Exception):
            raise metrics
        require_objectives(metrics, objectives)
        numbers = read_metrics(metrics)
    except Exception as error:
        return Trial(index, architecture, {}, reason=reason_of(error))
    return Trial(index, architecture, numbers)


def reason_of(error: Exception) -> str:
    """Return the reason of a failed trial, for its record."""
    kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
    return f"{kind}{error}"


def _exhausted(space: SearchSpace, count: int, repeats: int) -> str:
    if not space.has_rule and count == space.size:
        return f"the space is exhausted: all of its {count} architectures have been evaluated"
    if repeats >= MAX_REPEATS:
        return (
            f"the space seems exhausted: each of the last {repeats} proposals had been evaluated before; "
            f"{count} architectures were evaluated"
        )
    return ""
