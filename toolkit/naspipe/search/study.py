"""The trials of a search as an Optuna study, in memory or in a journal file that optuna-dashboard opens."""

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
    """Keep Optuna's lines, and its warnings of what is still experimental, from the console."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)


class StudyForm:
    """How trials of a space with these objectives look to Optuna.

    Every decision that exists is a categorical parameter, a failed trial has the state FAIL, and values come in
    the order of the objectives. User attributes hold the architecture's text, the other metrics, and why a trial
    failed. Options that Optuna does not know, tuples, become text.
    """

    def __init__(self, space: SearchSpace, objectives: Sequence[Objective]) -> None:
        """Prepare the categories of each decision."""
        self._space = space
        self._objectives = tuple(objectives)
        self._categories = {decision.name: _categories(decision) for decision in space.decisions}
        self._distributions = {name: CategoricalDistribution(found) for name, found in self._categories.items()}

    def trial(self, trial: Trial) -> FrozenTrial:
        """Return a trial as Optuna's."""
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
    """Return a search's trials as a study in memory, in their order.

    Args:
        trials: Complete and failed ones.
        space: What was searched.
        objectives: What was optimised.
        name: Name of the study.
    """
    form = StudyForm(space, objectives)
    with quiet_optuna():
        study = form.open(InMemoryStorage(), name)
        study.add_trials(form.trial(trial) for trial in trials)
    return study


class StudyJournal:
    """Keeps the trials of a search in a journal file of Optuna's, each exactly once.

    Trials may be added in any order: one is written when those before it have been, so that Optuna's numbers are
    the trials' indices. What the file holds already is compared with the trials known from before and not written
    again. The trials of the run are the truth: a file that says something else is written anew, with a warning.
    Writing takes the same time whatever is there already, and nothing that was written is kept in memory.
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
        """Open the file, or make it, and bring it up to date.

        Args:
            path: The file.
            space: What is searched.
            objectives: What is optimised.
            name: Name of the study.
            known: Trials of the search before it was broken off.
            every: After how many more trials the file is brought up to date again.

        Raises:
            RunError: The file cannot be written.
        """
        self._path = path
        self._form = StudyForm(space, objectives)
        self._name = name
        self._every = every
        self._waiting = {trial.index: trial for trial in known}
        _remove_locks(path)
        self._next = 0
        due = self._take_due()
        with writing(path), quiet_optuna():
            self._append(due[self._open(due) :])

    def add(self, trial: Trial) -> None:
        """Take a new trial up, and write those that wait if they are many.

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
        """Remove the trials whose predecessors have been added from those that wait."""
        due = []
        while self._next in self._waiting:
            due.append(self._form.trial(self._waiting.pop(self._next)))
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
        """Return how many of the known trials the file holds; make it if it is missing or says something else."""
        if self._path.exists():
            mend_lines(self._path)
            try:
                held = [_content(trial) for trial in self._held()]
                if held == [_content(trial) for trial in known[: len(held)]]:
                    return len(held)
                problem = "holds other trials than the run does"
            except (ValueError, LookupError, TypeError, AssertionError) as error:
                # What Optuna raises for lines that are no JSON, or no records of its own.
                problem = f"cannot be read: {error!r}"
            message = f"{self._path} {problem}. It is written anew from the run's trials."
            warnings.warn(message, NaspipeWarning, stacklevel=3)
            self._path.unlink()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._form.open(JournalStorage(JournalFileBackend(str(self._path))), self._name)
        return 0

    def _held(self) -> list[FrozenTrial]:
        file = JournalFileBackend(str(self._path))
        # Whether its first record makes this study, as what is appended takes for granted.
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
    """Remove the locks of a process that was killed while it wrote; no other works in a run's folder.

    Optuna waits for their end, and for ever if the path is relative.
    """
    for lock in path.parent.glob(f"{path.name}.lock*"):
        lock.unlink()


class _Tail(BaseJournalBackend):
    """What is appended to a journal whose older trials need not be read: they are not referred to again."""

    def __init__(self, file: JournalFileBackend) -> None:
        """Read the journal's first record, which makes the study."""
        self._first = list(itertools.islice(file.read_logs(0), 1))
        self.written: list[dict[str, Any]] = []

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        yield from [*self._first, *self.written][log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self.written.extend(logs)


def _content(trial: FrozenTrial) -> tuple[Any, ...]:
    """Return what of a trial a search determines; its times are left out."""
    return trial.state, trial.values, trial.params, trial.distributions, trial.user_attrs


def _categories(decision: Decision) -> list[Any]:
    """Return a decision's options as Optuna takes them: as they are, or all of them as text."""
    if not any(isinstance(option, tuple) for option in decision.options):
        return list(decision.options)
    texts = [format_option(option) for option in decision.options]
    return texts if len(set(texts)) == len(texts) else [repr(option) for option in decision.options]
