"""Run: a run's folder with the phases that fill it; what the command line calls."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from naspipe.config.schema import RunConfig
from naspipe.environment import describe_environment, is_follower
from naspipe.errors import InputError
from naspipe.files import write_json, write_text
from naspipe.preflight.run_check import check_run
from naspipe.records import RankRecord
from naspipe.results.folder import RunFolder
from naspipe.results.view import RunView, read_run
from naspipe.runs.fingerprint import search_fingerprint
from naspipe.runs.lock import RunLock
from naspipe.runs.new_folder import create_folder
from naspipe.runs.retrain_phase import retrain_best
from naspipe.runs.search_phase import extend_budget, search_run, with_workers
from naspipe.runs.stopping import stopped_by_sigterm
from naspipe.runs.train_phase import how_to_resume_training, refuse_without_checkpoints, train_run
from naspipe.supernet.determinism import deterministic
from naspipe.supernet.supernet import Supernet
from naspipe.training.context import RunContext
from naspipe.training.progress import Watch, ignore
from naspipe.training.supernet_training import finish_training


class Run(RunView):
    """One run: its folder, and the phases train, search, retrain and report.

    ``naspipe.run`` goes through all of them. Each phase reads the files of the phase before it, so they
    can be called in separate processes.
    """

    def __init__(
        self,
        folder: RunFolder,
        config: RunConfig | RunContext,
        watch: Watch = ignore,
        untrained: Supernet | None = None,
    ) -> None:
        """Use ``Run.create`` or ``Run.open``."""
        super().__init__(folder, config)
        self._watch = watch
        self._untrained = untrained
        self._lock = RunLock(folder.root)

    @classmethod
    def create(
        cls,
        config: RunContext | RunConfig | str | Path | Mapping[str, Any],
        out: str | Path | None = None,
        watch: Watch = ignore,
    ) -> Run:
        """Make the folder of a new run.

        Args:
            config: A configuration, the path of one, or a mapping of the same shape.
            out: The folder, which must not exist; by default a new one below ``runs/``.
            watch: Called with the progress of each phase.

        Raises:
            ConfigError: The configuration is wrong; no folder is made.
            TaskError: The task does not work; no folder is made.
            SpaceError: The blocks cannot be built, or do not fit the task; no folder is made.
            RunFolderError: The folder exists.
            InputError: The layout does not fit, or this process only trains a stage for another one.
        """
        if is_follower():
            raise InputError(
                "of the processes that torchrun starts, only that of rank 0 makes a run; the command line sees to it: "
                "torchrun --nproc-per-node STAGES -m naspipe run CONFIG."
            )
        context = RunContext.load(config)
        # Before the folder is made, so that missing data or a broken space leaves nothing behind.
        untrained: Supernet | None = check_run(context, watch)
        resolved = context.config
        if resolved.executor.transport == "distributed":
            untrained = None  # Each process builds its own; this one needs the memory no longer.
        folder = create_folder(out, (resolved.space.name, resolved.task.name))
        # The configuration comes last: with it, the folder is a run's, and can be resumed.
        write_json(folder.environment, describe_environment(resolved.seed, resolved.training.threads))
        write_text(folder.config, resolved.to_yaml())
        return cls(folder, context, watch, untrained)

    @classmethod
    def open(cls, path: str | Path, watch: Watch = ignore) -> Run:
        """Open the folder of an earlier run.

        Args:
            path: The folder.
            watch: Called with the progress of each phase.

        Raises:
            RunFolderError: It is no run folder.
            ConfigError: A plug-in that the run uses cannot be found any more.
        """
        folder, config = read_run(path)
        return cls(folder, config, watch)

    def train(self, trace: bool = False) -> Run:
        """Train the supernet and save it; returns the run.

        Args:
            trace: Whether to record the times and versions of all actions in ``train/trace.json``.

        Raises:
            RunFolderError: It has been trained, its training was interrupted, or another process works here.
            TrainingError: The training cannot continue.
            RunError: A file cannot be written.
        """
        with self._phase(how_to_resume_training(self.context, self.folder)):
            self.folder.refuse_trained()
            train_run(self.context, self.folder, self._watch, self._take_untrained(), trace)
        return self

    def resume(self) -> Run:
        """Resume an interrupted run in any phase, and finish it; returns the run.

        The result is that of a run without the interrupt, bit for bit. ``naspipe.runs.resuming.reopen`` opens a run
        with another layout.

        Raises:
            RunFolderError: A file is damaged, another process works here, or the training cannot be resumed exactly.
            RunError: A phase failed.
        """
        # The lock is held between phases too, and SIGTERM between phases is reported.
        with self._lock.held(), stopped_by_sigterm(self.folder.how_to_resume):
            if not self.folder.supernet.exists():
                refuse_without_checkpoints(self.context, self.folder)
                with self._phase(self.folder.how_to_resume):
                    train_run(self.context, self.folder, self._watch, None, trace=False)
            finish_training(self.folder.training)
            if not self.folder.best_architecture.exists():
                self.search()
            if not self.folder.best_metrics.exists():
                self.retrain()
            self.report()
        return self

    def search(self, extend: int | None = None, workers: int | None = None) -> Run:
        """Search the trained supernet and name the best architecture; returns the run.

        An interrupted search is resumed: results of earlier evaluations are looked up.

        Args:
            extend: Trials to add to the budget; a finished search is then continued, and its result is put aside.
            workers: Number of processes that evaluate; by default the configuration's.

        Raises:
            RunFolderError: The supernet has not been trained, the search has finished, space or strategy have
                changed since it began, a file is damaged, or another process works here.
            SearchError: Every trial failed, or the strategy did.
            InputError: An argument is less than one, or workers cannot find a plug-in.
            RunError: A file cannot be written.
        """
        with self._phase(f"To resume: naspipe search {self.folder.quoted}"):
            self.folder.require_supernet()
            if extend is None:
                more = f"Or add trials to it: naspipe search {self.folder.quoted} --extend N."
                self.folder.refuse(self.folder.best_architecture, "a finished search", more)
            config = with_workers(self.config, workers)
            search_fingerprint(self.context, self.folder).check(self.folder.trials.exists())
            known = self.trials()
            if extend is not None:
                self._context = self.context.with_config(extend_budget(self.config, self.folder, len(known), extend))
                config = with_workers(self.config, workers)
            search_run(self, config, known, self._watch)
        return self

    def retrain(self) -> Run:
        """Train the best architectures as ordinary modules, save, reload and test them; returns the run.

        There is a row for each architecture, kind of initial weights, and seed; the row that is best on the validation
        split goes to ``best/``. Rows that were finished before an interrupt are kept. The test split is used once for
        each row, after everything else.

        Raises:
            RunFolderError: The search has not finished, the retraining has, a file is damaged, or another process works
                here.
            InputError: This machine cannot run ``retrain.processes``.
            TrainingError: A row cannot be trained.
            RunError: A saved model does not evaluate as the trained one did, or a file cannot be written.
        """
        with self._phase(f"To resume: naspipe retrain {self.folder.quoted}"):
            self.folder.require_best()
            self.folder.refuse(self.folder.best_metrics, "a retrained model")
            if self.config.retrain.processes > 1 or self.config.retrain.inits == ("scratch",):
                self.release_supernet()
            try:
                retrain_best(self, self._watch)
            finally:
                self.release_supernet()
        return self

    def rank_check(self, against: str = "retrain", architectures: int | None = None, seeds: int = 1) -> RankRecord:
        """Compare the supernet's order of random architectures with their true order; returns the result.

        Earlier scores and truths are looked up. So an interrupted check is resumed, and a check of more architectures
        or seeds computes only the new ones.

        Args:
            against: ``retrain``, or an objective that needs the architecture only, such as a table of accuracies.
            architectures: Number of architectures to check; by default 20 for ``retrain`` and 100 otherwise, or all of
                the space.
            seeds: Number of trainings of each architecture, whose mean is the truth.

        Raises:
            InputError: An argument is wrong, or the supernet has not been trained; nothing has been computed.
            RunFolderError: A file is damaged, or another process works here.
            RunError: Nearly all architectures failed, or a file cannot be written.
        """
        # Other commands need not wait for its imports.
        from naspipe.runs.rank_check import check_ranking, how_to_resume_check

        # The check reads the supernet itself, and frees it before it trains.
        self.release_supernet()
        with self._phase(how_to_resume_check(self, against, architectures, seeds)):
            return check_ranking(self, against, architectures, seeds, self._watch)

    def report(self) -> Path:
        """Write ``report.html`` from what the run has so far; returns its path."""
        # Importing plotly takes time that other phases need not wait for.
        from naspipe.report.page import write_report

        return write_report(self)

    def _take_untrained(self) -> Supernet | None:
        """Return the supernet that was built for the checks, once: training changes it in place."""
        untrained, self._untrained = self._untrained, None
        return untrained

    @contextlib.contextmanager
    def _phase(self, how_to_resume: str) -> Iterator[None]:
        """Hold the lock and compute deterministically; the error of an interrupt or SIGTERM says how to resume."""
        with (
            self._lock.held(),
            stopped_by_sigterm(how_to_resume),
            deterministic(self.config.training.threads, self.config.training.device),
        ):
            try:
                yield
            except KeyboardInterrupt as error:
                raise KeyboardInterrupt(f"Interrupted. {how_to_resume}") from error


def run(
    config: RunContext | RunConfig | str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    watch: Watch = ignore,
) -> Run:
    """Train a supernet, search it, retrain the best subnet and write the report.

    Args:
        config: A configuration, the path of one, or a mapping of the same shape.
        out: The run's folder, which must not exist; by default a new one below ``runs/``.
        watch: Called with the progress of each phase.

    Returns:
        The finished run.

    Raises:
        ConfigError: The configuration is wrong; nothing was started.
        RunError: A phase failed; what was computed before is in the folder.
    """
    new = Run.create(config, out, watch)
    new.train().search().retrain().report()
    return new
