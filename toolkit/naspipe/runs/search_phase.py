"""The search phase of a run: constraints, measures, workers, and the log, from which a search is resumed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from naspipe import registry
from naspipe.config.schema import RunConfig
from naspipe.errors import InputError, RunFolderError, SearchError
from naspipe.files import JsonLines, read_json, sort_lines, write_json, write_text, writing
from naspipe.results.folder import RunFolder
from naspipe.results.view import RunView
from naspipe.search.constraints import Feasibility, constrained
from naspipe.search.evaluation import Evaluator
from naspipe.search.loop import Evaluate, Metrics, SearchResult, run_search
from naspipe.search.measure_cache import MeasureCache
from naspipe.search.trial import Trial, pareto_front
from naspipe.search.workers import WorkerPool
from naspipe.space import Architecture
from naspipe.supernet.supernet import Supernet
from naspipe.tasks.data import Splits
from naspipe.training.components import Components
from naspipe.training.progress import Progress, Watch


def search_run(view: RunView, config: RunConfig, known: Sequence[Trial], watch: Watch) -> None:
    """Search a run's trained supernet, and name the best architecture.

    Args:
        view: The run; this process holds its folder, in which the trials are logged.
        config: Its configuration, with the budget and the number of workers that this search has.
        known: The trials so far.
        watch: Called with the progress.

    Raises:
        SearchError: Every trial failed, the strategy or a worker failed, or nothing satisfies the constraints.
        RunFolderError: A resumed strategy proposes other architectures than before.
        RunError: A file cannot be written.
    """
    from naspipe.search.study import StudyJournal  # it needs Optuna, which training and reading a run do not

    components, folder = view.components, view.folder
    supernet, splits = view.shared_supernet(), view.splits
    space, objectives, budget = components.space, components.objectives, config.search.budget
    clock = _Clock(folder.search_clock if budget.seconds is not None else None)
    with contextlib.ExitStack() as stack:
        timed = any(measure.timed for measure in components.measures.values())
        on_timed = stack.enter_context(JsonLines(folder.timings)).append if timed else _forget
        journal = stack.enter_context(StudyJournal(folder.study, space, objectives, _study_name(config), known))
        log = stack.enter_context(JsonLines(folder.trials))
        measures = MeasureCache(
            components.measures, space, supernet.extract, splits.validation, config, folder.timed(), on_timed
        )
        names = [constraint.metric for constraint in components.constraints]
        feasibility = Feasibility(space, components.constraints, lambda a: measures.of(a, names))
        searched = constrained(space, feasibility) if names else space
        strategy = view.context.take_strategy(searched)

        def on_trial(trial: Trial) -> None:
            log.append(trial.to_record(space))
            journal.add(trial)
            clock.save()
            detail = trial.describe(objectives)
            watch(Progress("search", trial.index + 1, budget.trials or trial.index + 1, detail))

        evaluate = stack.enter_context(_evaluating(config, components, measures, supernet, splits))
        try:
            result = run_search(searched, strategy, objectives, budget, evaluate, on_trial, known, clock.seconds)
        except SearchError as error:
            if not known and feasibility.explanation:
                raise SearchError(feasibility.explanation) from error
            raise
        finally:
            clock.save()
    sort_lines(folder.trials, "trial")
    _conclude(components, folder, result, watch)


def _study_name(config: RunConfig) -> str:
    """Return the name of the study in optuna-dashboard; it does not depend on the folder, which may be moved."""
    names = (config.space.name, config.task.name, config.search.strategy.name)
    return "-".join(name.rpartition(":")[2] for name in names)


def _conclude(components: Components, folder: RunFolder, result: SearchResult, watch: Watch) -> None:
    if result.note:
        watch(Progress("search", len(result.trials), len(result.trials), result.note))
    best = pareto_front(result.trials, components.objectives)[0]
    write_json(folder.best_architecture, {**best.to_record(components.space), "note": result.note})


@contextlib.contextmanager
def _evaluating(
    config: RunConfig, components: Components, measures: MeasureCache, supernet: Supernet, splits: Splits
) -> Iterator[Evaluate]:
    """Return the function that evaluates a generation, in this process or in workers, which are ended afterwards."""
    pool = None
    # If every objective is a measure, the task's metrics are not needed.
    measured_only = all(objective.name in components.measures for objective in components.objectives)
    evaluator = Evaluator(supernet, components.task, splits, config)
    if config.search.workers > 1 and not measured_only:
        pool = WorkerPool(config, config.search.workers)

    def evaluate(architectures: Sequence[Architecture]) -> Iterator[tuple[int, Metrics | Exception]]:
        measured: dict[int, Mapping[str, float]] = {}
        # Before any worker is busy, which would disturb measures that are taken by the clock.
        for place, architecture in enumerate(architectures):
            try:
                measured[place] = measures.of(architecture)
            except Exception as error:
                yield place, error
        places = list(measured)
        if measured_only:
            results: Iterator[tuple[int, Metrics | Exception]] = ((number, {}) for number in range(len(places)))
        elif pool is None:
            results = _evaluate_here(evaluator, [architectures[place] for place in places])
        else:
            results = pool.evaluate([partial(supernet.extract, architectures[place]) for place in places])
        for number, metrics in results:
            place = places[number]
            yield place, metrics if isinstance(metrics, Exception) else {**metrics, **measured[place]}

    try:
        yield evaluate
    except BaseException:
        if pool is not None:
            pool.kill()
        raise
    if pool is not None:
        pool.close()


def _evaluate_here(
    evaluator: Evaluator, architectures: Sequence[Architecture]
) -> Iterator[tuple[int, Metrics | Exception]]:
    for number, architecture in enumerate(architectures):
        try:
            metrics: Metrics | Exception = evaluator.evaluate(architecture)
        except Exception as error:
            metrics = error
        yield number, metrics


def _forget(record: dict[str, Any]) -> None:
    """Keep no record, since nothing is measured by the clock."""


class _Clock:
    """The time that a search has taken over all resumes, kept in a file if one is given."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        before = read_json(path, float, "Delete it: the time is then counted anew.") if path and path.exists() else 0.0
        self._start = time.monotonic() - before

    def seconds(self) -> float:
        """Return the time so far."""
        return time.monotonic() - self._start

    def save(self) -> None:
        """Write the time to the file."""
        if self._path is not None:
            write_json(self._path, self.seconds())


def extend_budget(config: RunConfig, folder: RunFolder, done: int, more: int) -> RunConfig:
    """Extend the budget of a search; the result of the smaller budget is put aside.

    Args:
        config: The run's configuration.
        folder: Its folder, where the configuration changes.
        done: Number of trials so far.
        more: Number of trials to add to the budget, or to those done if the budget does not limit trials.

    Returns:
        The configuration with the budget extended; it has no other limit.

    Raises:
        InputError: The number is less than one.
        RunFolderError: The results of the smaller budget cannot be put aside.
        RunError: A file cannot be written.
    """
    if more < 1:
        raise InputError(f"a search must be extended by at least 1 trial, but got {more}.")
    total = (config.search.budget.trials or done) + more
    budget = config.search.budget.model_copy(update={"trials": total, "generations": None, "seconds": None})
    extended = config.model_copy(update={"search": config.search.model_copy(update={"budget": budget})})
    # The earlier result goes first: if the run is interrupted here, its search counts as unfinished.
    _put_aside_results(folder, done)
    write_text(folder.config, extended.to_yaml())
    return extended


def with_workers(config: RunConfig, workers: int | None) -> RunConfig:
    """Return a configuration with another number of workers, if one is given.

    Raises:
        InputError: The number is less than one; or it is above one, and a plug-in is known to this process only.
    """
    if workers is not None:
        if workers < 1:
            raise InputError(f"the number of workers must be at least 1, but is {workers}.")
        config = config.model_copy(update={"search": config.search.model_copy(update={"workers": workers})})
    if config.search.workers > 1:
        for kind, section in ((registry.spaces, config.space), (registry.tasks, config.task)):
            kind.require_elsewhere(section.name, f"search.workers = {config.search.workers}", "set search.workers to 1")
    return config


def _put_aside_results(folder: RunFolder, trials: int) -> None:
    """Rename the results of a search and a retraining, so that others can take their place.

    Args:
        folder: The run's folder.
        trials: Number of trials so far, which becomes part of the new name.

    Raises:
        RunFolderError: The new name exists already.
    """
    if not folder.best_architecture.parent.exists():
        return
    aside = folder.root / f"best.after-{trials}-trials"
    if aside.exists():
        raise RunFolderError(f"the results of the smaller budget would become {aside}, but it exists. Move it away.")
    with writing(aside):
        folder.best_architecture.parent.rename(aside)
