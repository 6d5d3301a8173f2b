"""The trials of a search as an Optuna study, in memory or in a journal file for optuna-dashboard."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from naspipe.errors import NaspipeWarning
from naspipe.files import mend_lines, writing
from naspipe.search.objective import Objective
from naspipe.search.trial import Trial
from naspipe.space import Decision, SearchSpace, format_option


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Silence Optuna's log, and its warnings about experimental features."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)


class TrialConverter:
    """Converts trials to Optuna's.

    Every decision that exists is a categorical parameter, a failed trial has the state FAIL, and values are in the
    order of the objectives. User attributes hold the text of the architecture, the other metrics, and the reason of a
    failure. Tuples, which Optuna does not accept as options, become text.
    """

    def __init__(self, space: SearchSpace, objectives: Sequence[Objective]) -> None:
        """Prepare the categories of every decision."""
        self._space = space
        self._objectives = tuple(objectives)
        self._categories = {decision.name: _categories(decision) for decision in space.decisions}
        self._distributions = {name: CategoricalDistribution(found) for name, found in self._categories.items()}

    def convert(self, trial: Trial) -> FrozenTrial:
        """Return a trial of Optuna's."""
        names = [objective.name for objective in self._objectives]
        attributes: dict[str, Any] = {k: v for k, v in trial.metrics.items() if k not in names}
        attributes["text"] = self._space.format(trial.architecture)
        if trial.reason is not None:
            attributes["reason"] = trial.reason
        return create_trial(
            state=TrialState.COMPLETE if trial.reason is None else TrialState.FAIL,
            values=trial.values(self._objectives),
            params=self._parameters(trial.architecture),
            distributions={name: self._distributions[name] for name in trial.architecture},
            user_attrs=attributes,
        )

    def _parameters(self, architecture: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: self._categories[name][self._space.decision(name).index(option)]
            for name, option in architecture.items()
        }

    def open(self, storage: BaseStorage, name: str) -> optuna.Study:
        """Return a new study without trials."""
        directions = [objective.direction for objective in self._objectives]
        study = optuna.create_study(storage=storage, study_name=name, directions=directions)
        study.set_metric_names([objective.name for objective in self._objectives])
        return study


def make_study(
    trials: Iterable[Trial], space: SearchSpace, objectives: Sequence[Objective], name: str = "naspipe"
) -> optuna.Study:
    """Return the trials of a search as a study in memory, in their order.

    Args:
        trials: Complete and failed trials.
        space: The search space.
        objectives: The objectives of the search.
        name: Name of the study.
    """
    converter = TrialConverter(space, objectives)
    with quiet_optuna():
        study = converter.open(InMemoryStorage(), name)
        study.add_trials(converter.convert(trial) for trial in trials)
    return study


class StudyJournal:
    """Writes the trials of a search to a journal file of Optuna's, each exactly once.

    Trials may be added in any order. A trial is written after all earlier ones, so Optuna's numbers are the indices of
    the trials. On resume, the trials in the file are compared with the known ones, and are not written again. The
    trials of the run are authoritative: a file that differs is written anew, with a warning. The time to write a trial
    does not depend on the size of the file, and written trials are not kept in memory.
    """

    def __init__(
        self,
        path: Path,
        space: SearchSpace,
        objectives: Sequence[Objective],
        name: str,
        known: Iterable[Trial] = (),
        every: int = 50,
    ) -> None:
        """Open or make the file, and write the known trials that it lacks.

        Args:
            path: The file.
            space: The search space.
            objectives: The objectives of the search.
            name: Name of the study.
            known: Trials of the search before it was interrupted.
            every: Number of unwritten trials at which they are written.

        Raises:
            RunError: The file cannot be written.
        """
        self._path = path
        self._converter = TrialConverter(space, objectives)
        self._name = name
        self._every = every
        self._waiting = {trial.index: trial for trial in known}
        _remove_locks(path)
        self._next = 0
        due = self._take_due()
        with writing(path), quiet_optuna():
            self._append(due[self._open(due) :])

    def add(self, trial: Trial) -> None:
        """Add a new trial, and write the unwritten ones if there are enough.

        Raises:
            RunError: The file cannot be written.
        """
        self._waiting[trial.index] = trial
        if len(self._waiting) >= self._every:
            self.flush()

    def flush(self) -> None:
        """Write every trial whose predecessors have been added.

        Raises:
            RunError: The file cannot be written.
        """
        with writing(self._path), quiet_optuna():
            self._append(self._take_due())

    def _take_due(self) -> list[FrozenTrial]:
        """Return the unwritten trials whose predecessors have all been added, and stop to keep them."""
        due = []
        while self._next in self._waiting:
            due.append(self._converter.convert(self._waiting.pop(self._next)))
            self._next += 1
        return due

    def _append(self, due: Sequence[FrozenTrial]) -> None:
        if not due:
            return
        file = JournalFileBackend(str(self._path))
        tail = _Tail(file)
        optuna.load_study(study_name=self._name, storage=JournalStorage(tail)).add_trials(due)
        file.append_logs(tail.written)

    def _open(self, known: Sequence[FrozenTrial]) -> int:
        """Return how many of the known trials the file has; make a new file if it is missing or differs."""
        if self._path.exists():
            mend_lines(self._path)
            try:
                held = [_content(trial) for trial in self._held()]
                if held == [_content(trial) for trial in known[: len(held)]]:
                    return len(held)
                problem = "has other trials than the run"
            except (ValueError, LookupError, TypeError, AssertionError) as error:
                # Optuna raises these for lines that are not JSON, or not records of its own.
                problem = f"cannot be read: {error!r}"
            message = f"{self._path} {problem}. It is written anew from the run's trials."
            warnings.warn(message, NaspipeWarning, stacklevel=3)
            self._path.unlink()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._converter.open(JournalStorage(JournalFileBackend(str(self._path))), self._name)
        return 0

    def _held(self) -> list[FrozenTrial]:
        file = JournalFileBackend(str(self._path))
        # This raises an error unless the first record creates this study, as appending requires.
        optuna.load_study(study_name=self._name, storage=JournalStorage(_Tail(file)))
        storage = JournalStorage(file)
        return optuna.load_study(study_name=self._name, storage=storage).get_trials(deepcopy=False)

    def __enter__(self) -> StudyJournal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.flush()


def _remove_locks(path: Path) -> None:
    """Remove the locks of a killed process; no other process works in the run's folder.

    Optuna would wait for their expiry, and for ever if the path is relative.
    """
    for lock in path.parent.glob(f"{path.name}.lock*"):
        lock.unlink()


class _Tail(BaseJournalBackend):
    """A backend that appends to a journal without reading its older trials, which later records do not refer to."""

    def __init__(self, file: JournalFileBackend) -> None:
        """Read the first record of the journal, which creates the study."""
        self._first = list(itertools.islice(file.read_logs(0), 1))
        self.written: list[dict[str, Any]] = []

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        yield from [*self._first, *self.written][log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self.written.extend(logs)


def _content(trial: FrozenTrial) -> tuple[Any, ...]:
    """Return the content of a trial that the search determines, which excludes its times."""
    return trial.state, trial.values, trial.params, trial.distributions, trial.user_attrs


def _categories(decision: Decision) -> list[Any]:
    """Return a decision's options for Optuna: unchanged, or all as text if one is a tuple."""
    if not any(isinstance(option, tuple) for option in decision.options):
        return list(decision.options)
    texts = [format_option(option) for option in decision.options]
    return texts if len(set(texts)) == len(texts) else [repr(option) for option in decision.options]
