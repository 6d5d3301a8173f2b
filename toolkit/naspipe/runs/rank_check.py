"""The rank check: whether the supernet ranks architectures in their true order."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeVar

from naspipe.errors import InputError, NaspipeError, RunError
from naspipe.files import JsonLines, write_json
from naspipe.keys import keyed_random
from naspipe.records import RankedLine, RankRecord, ScoreLine, TruthLine
from naspipe.results.rank_files import RankFiles
from naspipe.results.view import RunView
from naspipe.runs.rank_truths import Truth, find_truth
from naspipe.search.evaluation import Evaluator
from naspipe.search.objective import Objective, read_directions, read_metrics, require_objectives
from naspipe.search.ranking import find_doubts, measure_agreement, measure_gain, spread_evenly
from naspipe.space import Architecture
from naspipe.space.distinct import distinct_architectures
from naspipe.supernet.supernet import Supernet
from naspipe.training.progress import Progress, Watch

LEAST = 3
"""Number of architectures of the smallest check."""

UNTRAINED = 10
"""Largest number of architectures that the untrained supernet scores as well."""

Weights = Literal["trained", "untrained"]
Evaluate = Callable[[Architecture], Mapping[str, object]]
Result = TypeVar("Result")


def check_ranking(run: RunView, against: str, architectures: int | None, seeds: int, watch: Watch) -> RankRecord:
    """Check a run's supernet, or resume an interrupted check; writes and returns the result.

    Scores and truths of all earlier checks are looked up in the run's folder.

    Args:
        run: A run with a trained supernet; this process holds its lock, and computes deterministically.
        against: Name of the truth, as given to ``--against``.
        architectures: Number of architectures to check; None: the truth's default, or all of the space.
        seeds: Number of trainings of each architecture, whose mean is the truth.
        watch: Called with the progress.

    Raises:
        InputError: An argument is wrong or the supernet is not trained; nothing has been computed.
        RunError: Scores or truths failed for nearly all architectures, or a file cannot be written.
    """
    run.folder.require_supernet()
    objective = _score_objective(run)
    truth = find_truth(run, against, objective)
    if seeds < 1 or (seeds > 1 and not truth.is_random):
        allowed = "at least 1" if truth.is_random else f"1, for {against} gives the same at any seed"
        raise InputError(f"--seeds must be {allowed}, but is {seeds}.")
    pool, count = _draw_pool(run, truth, architectures)
    truth.check(pool)
    return _Check(run, against, objective, truth, watch).finish(pool, count, seeds)


def how_to_resume_check(run: RunView, against: str, architectures: int | None, seeds: int) -> str:
    """Return how to resume a check, as a sentence."""
    options = f"--against {shlex.quote(against)} --seeds {seeds}"
    if architectures is not None:
        options += f" --architectures {architectures}"
    return f"To resume: naspipe rank-check {run.folder.quoted} {options}"


def _score_objective(run: RunView) -> Objective:
    """Return the run's first objective that depends on the supernet's weights."""
    metrics = read_directions(run.components.task)
    for objective in run.components.objectives:
        if objective.name in metrics:
            return objective
    names = [objective.name for objective in run.components.objectives]
    raise InputError(
        f"a rank check needs an objective that depends on the weights, but search.objectives are {names!r}. "
        f"This task measures {', '.join(metrics)}: start a run with one of these among its objectives."
    )


def _draw_pool(run: RunView, truth: Truth, wanted: int | None) -> tuple[list[Architecture], int]:
    """Return the architectures to score, and the number of those to check."""
    count = truth.default_count if wanted is None else wanted
    if count < LEAST:
        raise InputError(f"--architectures must be at least {LEAST}, but is {count}: fewer have no order to speak of.")
    space = run.components.space
    generator = keyed_random(run.config.seed, "rank_check", "pool")
    pool = distinct_architectures(space, generator, count * truth.pool_factor)
    if len(pool) < (LEAST if wanted is None else wanted):
        raise InputError(
            f"a rank check of {count} architectures needs as many, but the space has only {len(pool):,}. "
            + ("Give fewer by --architectures." if len(pool) >= LEAST else f"It takes at least {LEAST}.")
        )
    return pool, min(count, len(pool))


class _Check:
    """One check: scores of the pool, the choice from it, truths, and the result."""

    def __init__(self, run: RunView, against: str, objective: Objective, truth: Truth, watch: Watch) -> None:
        """Read the scores and truths so far; damaged files are found before anything is computed."""
        self._run = run
        self._space = run.components.space
        self._against = against
        self._objective = objective
        self._truth = truth
        self._watch = watch
        self._files = RankFiles(run.folder.rank_check)
        self._scores = self._files.known_scores(self._space)
        self._truths = self._files.known_truths(against, self._space)

    def finish(self, pool: Sequence[Architecture], count: int, seeds: int) -> RankRecord:
        """Compute missing scores and truths, and write the result."""
        self._score(pool, "trained")
        ranked = self._rank(pool)
        unscored = [line.reason for line in (self._scores["trained", a] for a in pool) if line.reason is not None]
        _require(len(ranked), f"of {len(pool)} architectures could be scored by the supernet", unscored)
        places = spread_evenly(len(ranked), min(count, len(ranked)))
        chosen = [ranked[place] for place in places]
        self._score([chosen[place] for place in spread_evenly(len(chosen), min(UNTRAINED, len(chosen)))], "untrained")
        self._find_truths(chosen, seeds)
        lines = [self._line(place + 1, ranked[place], seeds) for place in places]
        record = self._conclude(lines, len(pool), unscored, seeds)
        write_json(self._files.result(self._against), record.model_dump())
        return record

    def _score(self, architectures: Sequence[Architecture], weights: Weights) -> None:
        """Evaluate the architectures that have no score with these weights yet."""
        missing = [architecture for architecture in architectures if (weights, architecture) not in self._scores]
        if not missing:
            return
        evaluate = _evaluation(self._run, weights)
        phase = "score" if weights == "trained" else "untrained"
        with JsonLines(self._files.scores) as log:
            for done, architecture in enumerate(missing, start=len(architectures) - len(missing) + 1):
                metrics, reason = _attempt(self._measure, evaluate, architecture)
                line = ScoreLine(
                    supernet=weights,
                    text=self._space.format(architecture),
                    architecture=dict(architecture),
                    metrics=metrics or {},
                    reason=reason,
                )
                log.append(line.model_dump())
                self._scores[weights, architecture] = line
                name = self._objective.name
                self._tell(phase, done, len(architectures), reason or f"{name} {line.metrics[name]:.6g}")

    def _measure(self, evaluate: Evaluate, architecture: Architecture) -> dict[str, int | float]:
        metrics = evaluate(architecture)
        require_objectives(metrics, [self._objective])
        return read_metrics(metrics)

    def _rank(self, pool: Sequence[Architecture]) -> list[Architecture]:
        """Return the architectures that have a score, the best first; of equals, the first drawn."""
        scored = [(self._scores["trained", architecture], architecture) for architecture in pool]
        name = self._objective.name
        complete = [(line.metrics[name], architecture) for line, architecture in scored if line.reason is None]
        return [architecture for _, architecture in sorted(complete, key=lambda pair: self._objective.cost(pair[0]))]

    def _find_truths(self, chosen: Sequence[Architecture], seeds: int) -> None:
        """Find the missing truths; all architectures with one seed before any with the next."""
        due = [(seed, architecture) for seed in range(seeds) for architecture in chosen]
        missing = [key for key in due if key not in self._truths]
        with JsonLines(self._files.truths(self._against)) as log:
            for done, (seed, architecture) in enumerate(missing, start=len(due) - len(missing) + 1):
                value, reason = _attempt(self._truth.value, architecture, seed)
                line = TruthLine(
                    seed=seed,
                    text=self._space.format(architecture),
                    architecture=dict(architecture),
                    value=value,
                    reason=reason,
                )
                log.append(line.model_dump())
                self._truths[seed, architecture] = line
                self._tell("truth", done, len(due), reason or f"{self._truth.name} {value:.6g}")

    def _line(self, rank: int, architecture: Architecture, seeds: int) -> RankedLine:
        """Return the result for an architecture; it has a truth only if none of its trainings failed."""
        found = [self._truths[seed, architecture] for seed in range(seeds)]
        reason = next((line.reason for line in found if line.reason is not None), None)
        values = [line.value for line in found if line.value is not None]
        name = self._objective.name
        before = self._scores.get(("untrained", architecture))
        return RankedLine(
            rank=rank,
            text=self._space.format(architecture),
            architecture=dict(architecture),
            score=self._scores["trained", architecture].metrics[name],
            untrained=None if before is None else before.metrics.get(name),
            truths=values,
            truth=statistics.fmean(values) if reason is None else None,
            spread=statistics.stdev(values) if reason is None and len(values) > 1 else None,
            reason=reason,
        )

    def _conclude(self, lines: Sequence[RankedLine], pool: int, unscored: Sequence[str], seeds: int) -> RankRecord:
        """Correlate scores and truths."""
        failed = [line.reason for line in lines if line.reason is not None]
        pairs = [(line.score, line.truth) for line in lines if line.truth is not None]
        _require(len(pairs), f"of {len(lines)} architectures have a truth", failed)
        direction = self._objective.direction
        scores, truths = [score for score, _ in pairs], [truth for _, truth in pairs]
        kendall, spearman = measure_agreement(scores, direction, truths, self._truth.direction)
        both = [(line.score, line.untrained) for line in lines if line.untrained is not None]
        gain = measure_gain([trained for trained, _ in both], [before for _, before in both], direction)
        doubts = find_doubts(len(pairs), kendall, gain)
        for what, total, reasons in (("score", pool, unscored), ("truth", len(lines), failed)):
            if reasons:
                doubts.append(f"{len(reasons)} of {total} architectures have no {what}. The first reason: {reasons[0]}")
        return RankRecord(
            against=self._against,
            score=self._objective.name,
            score_direction=direction,
            truth=self._truth.name,
            truth_direction=self._truth.direction,
            seeds=seeds,
            pool=pool,
            kendall=kendall,
            spearman=spearman,
            gain=gain,
            warnings=doubts,
            architectures=list(lines),
        )

    def _tell(self, phase: str, done: int, total: int, detail: str) -> None:
        self._watch(Progress(phase, done, total, detail))


def _evaluation(run: RunView, weights: Weights) -> Evaluate:
    """Return the function that evaluates an architecture with the trained or the initial supernet's weights."""
    if weights == "trained":
        supernet = run.supernet()
    else:
        supernet = Supernet(run.components.space, run.config.seed).to(run.config.training.device)
    return Evaluator(supernet, run.components.task, run.splits, run.config).evaluate


def _attempt(action: Callable[..., Result], *arguments: object) -> tuple[Result | None, str | None]:
    """Return the result of a call, or why it failed: one failure must not end the check."""
    try:
        return action(*arguments), None
    except Exception as error:
        kind = "" if isinstance(error, (NaspipeError, ValueError)) else f"{type(error).__name__}: "
        return None, f"{kind}{error}"


def _require(count: int, what: str, reasons: Sequence[str]) -> None:
    if count < LEAST:
        reason = f"The first reason: {reasons[0]}"
        raise RunError(f"a rank check needs {LEAST} architectures, but only {count} {what}. {reason}")
