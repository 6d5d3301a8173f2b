"""Run: a run folder and its phases; what the command line calls."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from naspipe.checks import check_task, load_splits
from naspipe.components import Components, as_config, build_components
from naspipe.config.resolve import resolve_file
from naspipe.config.schema import RunConfig
from naspipe.environment import describe_environment, is_follower
from naspipe.errors import InputError, RunFolderError
from naspipe.files import digest_tensors, load_tensors, reading, write_json, write_text
from naspipe.planning import check_layout
from naspipe.records import RankRecord, RowScores
from naspipe.runs.folder import RunFolder, create_folder
from naspipe.runs.progress import Watch, ignore
from naspipe.runs.remains import clear_remains
from naspipe.runs.retraining import retrain_best
from naspipe.runs.rows import Row, plan_rows, row_folder
from naspipe.runs.searching import extend_budget, search_supernet, settle_search, with_workers
from naspipe.runs.stopping import stopped_by_sigterm
from naspipe.runs.training import finish_training, how_to_go_on, refuse_stale, train_supernet
from naspipe.runs.weights import load_weights
from naspipe.search.trial import Trial
from naspipe.space import Architecture
from naspipe.supernet.supernet import Supernet, build_subnet
from naspipe.tasks.data import Splits
from naspipe.training.determinism import deterministic


class Run:
    """One run: its folder, and the phases train, search, retrain and report.

    ``naspipe.run`` goes through all of them. Each phase reads what the one before left in the folder, so
    they can be called in separate processes.
    """

    def __init__(
        self,
        folder: RunFolder,
        config: RunConfig,
        watch: Watch = ignore,
        splits: Splits | None = None,
        untrained: Supernet | None = None,
    ) -> None:
        """Use ``Run.create`` or ``Run.open``."""
        self.folder = folder
        self.config = config
        self._watch = watch
        self._splits = splits
        self._untrained = untrained
        self._held = False

    @classmethod
    def create(
        cls,
        config: RunConfig | str | Path | Mapping[str, Any],
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
            InputError: The layout does not fit, or this process only follows another.
        """
        if is_follower():
            raise InputError(
                "of the processes that torchrun starts, only that of rank 0 makes a run; the command line sees to it: "
                "torchrun --nproc-per-node STAGES -m naspipe run CONFIG."
            )
        resolved = as_config(config)
        # Before the folder is made, so that missing data or a broken space leaves nothing behind.
        components = build_components(resolved)
        with deterministic(resolved.training.threads, resolved.training.device):
            freeze = resolved.training.freeze_always_active
            untrained = Supernet(components.space, resolved.seed, freeze_always_active=freeze)
        splits = check_task(components, resolved, untrained)
        check_layout(resolved, components, splits).warn()
        if resolved.retrain.processes > 1:
            from naspipe.runs.replicas import check_replicas

            check_replicas(resolved)
        folder = create_folder(out, (resolved.space.name, resolved.task.name))
        run = cls(folder, resolved, watch, splits, untrained)
        # The configuration comes last: with it, the folder is a run's, and can be gone on with.
        write_json(folder.environment, describe_environment(resolved.seed, resolved.training.threads))
        write_text(folder.config, resolved.to_yaml())
        return run

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
        folder = RunFolder(Path(path))
        if not folder.config.is_file():
            raise RunFolderError(f"{path} is no run folder: there is no {folder.config.name} in it.")
        config, _ = resolve_file(folder.config)
        return cls(folder, config, watch)

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder.root

    @cached_property
    def components(self) -> Components:
        """The run's plug-ins; used to look at, since samplers and strategies serve one phase."""
        return build_components(self.config)

    @property
    def watch(self) -> Watch:
        """What is called with the progress of each phase."""
        return self._watch

    @property
    def splits(self) -> Splits:
        """The task's data, loaded when first asked for."""
        if self._splits is None:
            self._splits = load_splits(self.components.task, self.config.seed)
        return self._splits

    @property
    def digest(self) -> str:
        """SHA-256 of the trained supernet: names, types, shapes and bits of its weights.

        Raises:
            RunFolderError: The supernet has not been trained.
        """
        self.folder.require_supernet()
        return digest_tensors(load_tensors(self.folder.supernet))

    def train(self, trace: bool = False) -> Run:
        """Train the supernet and save it; returns the run.

        Args:
            trace: Record what each stage did, when, and the versions it saw, in ``train/trace.json``.

        Raises:
            RunFolderError: It has been trained, its training was broken off, or another process works here.
            TrainingError: It cannot go on.
            RunError: A file cannot be written.
        """
        with self._phase(how_to_go_on(self.config, self.folder)):
            self.folder.refuse_trained()
            train_supernet(self.config, self.folder, self.splits, self._watch, self._take_untrained(), trace)
        return self

    def resume(self) -> Run:
        """Go on where the run was broken off, in whatever phase, and finish it; returns the run.

        The result is that of a run which was not broken off, bit for bit. ``naspipe.runs.resuming.reopen`` opens a run
        with another layout.

        Raises:
            RunFolderError: A file is damaged, another process works here, or the training cannot go on exactly.
            RunError: A phase failed.
        """
        # No other process may come in between two phases, nor SIGTERM without a word.
        with self._holding(), stopped_by_sigterm(self.folder.how_to_go_on):
            if not self.folder.supernet.exists():
                refuse_stale(self.config, self.folder)
                with self._phase(self.folder.how_to_go_on):
                    train_supernet(self.config, self.folder, self.splits, self._watch, None, trace=False)
            finish_training(self.folder)
            if not self.folder.best_architecture.exists():
                self.search()
            if not self.folder.best_metrics.exists():
                self.retrain()
            self.report()
        return self

    def _take_untrained(self) -> Supernet | None:
        """Hand out the supernet that was built to check it; whoever trains it in place has it alone."""
        untrained, self._untrained = self._untrained, None
        return untrained

    def search(self, extend: int | None = None, workers: int | None = None) -> Run:
        """Search the trained supernet and name the best architecture; returns the run.

        A search that was broken off goes on where it stopped: what has been evaluated is looked up.

        Args:
            extend: Trials to add to the budget; a search that has finished goes on then. What it led to is put aside.
            workers: Processes that evaluate; by default as many as the configuration says.

        Raises:
            RunFolderError: The supernet has not been trained, the search has finished, space or strategy have
                changed since it began, a file is damaged, or another process works here.
            SearchError: Every trial failed, or the strategy did.
            InputError: An argument is less than one, or workers cannot find a plug-in.
            RunError: A file cannot be written.
        """
        with self._phase(f"To go on: naspipe search {self.folder.quoted}"):
            self.folder.require_supernet()
            if extend is None:
                more = f"Or add trials to it: naspipe search {self.folder.quoted} --extend N."
                self.folder.refuse(self.folder.best_architecture, "a finished search", more)
            config = with_workers(self.config, workers)
            components = build_components(self.config)
            settle_search(self.config, components, self.folder)
            known = self.trials()
            if extend is not None:
                self.config = extend_budget(self.config, self.folder, len(known), extend)
                config = with_workers(self.config, workers)
            search_supernet(config, components, self.folder, self.supernet(), self.splits, known, self._watch)
        return self

    def retrain(self) -> Run:
        """Train the best architectures as ordinary modules, save, reload and test them; returns the run.

        There is a row for each architecture, start and seed; the one that is best on the validation split goes to
        ``best/``. Rows that were finished before an interrupt are kept. The test split is touched once a row, after
        everything else.

        Raises:
            RunFolderError: The search has not finished, this has been done, a file is damaged, or another
                process works here.
            InputError: This machine cannot run ``retrain.processes``.
            TrainingError: A row cannot go on.
            RunError: A saved model does not evaluate as the trained one did, or a file cannot be written.
        """
        with self._phase(f"To go on: naspipe retrain {self.folder.quoted}"):
            self.folder.require_best()
            self.folder.refuse(self.folder.best_metrics, "a retrained model")
            retrain_best(self)
        return self

    def rank_check(self, against: str = "retrain", architectures: int | None = None, seeds: int = 1) -> RankRecord:
        """Compare the supernet's order of random architectures with the true one; returns what comes of it.

        What has been scored or trained is looked up, so a check that was broken off goes on where it stopped, and one
        of more architectures or seeds adds to what there is.

        Args:
            against: ``retrain``, or an objective that needs the architecture only, such as a table of accuracies.
            architectures: How many are checked; by default 20 for ``retrain`` and 100 otherwise, or all there are.
            seeds: Trainings of each architecture, whose mean is the truth.

        Raises:
            InputError: An argument is wrong, or the supernet has not been trained; nothing has been computed.
            RunFolderError: A file is damaged, or another process works here.
            RunError: Nearly everything failed, or a file cannot be written.
        """
        from naspipe.runs.rank_check import check_ranking, how_to_go_on

        with self._phase(how_to_go_on(self, against, architectures, seeds)):
            return check_ranking(self, against, architectures, seeds, self._watch)

    def report(self) -> Path:
        """Write ``report.html`` from what the run has so far; returns its path."""
        from naspipe.report.page import write_report

        return write_report(self)

    def best(self) -> nn.Module:
        """Return the retrained subnet that won, an ordinary module in evaluation mode, on the CPU.

        Raises:
            RunFolderError: It has not been retrained.
        """
        module = build_subnet(self.components.space, self.retrained_architecture(), self.config.seed)
        load_weights(module, self.folder.best_model)
        return module.eval()

    def best_architecture(self) -> Architecture:
        """Return the architecture that the search found best.

        Raises:
            RunFolderError: The search has not finished.
        """
        self.folder.require_best()
        best = self.folder.best_trial()
        with reading(str(self.folder.best_architecture), "Has the search space changed?"):
            return self.components.space.architecture(Architecture(best.architecture))

    def rows(self) -> list[Row]:
        """Return the rows of the retraining, finished or not, in order.

        Raises:
            RunFolderError: The search has not finished, or a file is damaged.
        """
        return plan_rows(self.folder, self.config.retrain, self.components.space, self.components.objectives)

    def retrained(self) -> list[RowScores]:
        """Return the scores of the rows that are finished, in order.

        Raises:
            RunFolderError: The search has not finished, or a file is damaged.
        """
        files = [row_folder(self.folder, row) for row in self.rows()]
        return [row.scores() for row in files if row.metrics.exists()]

    def retrained_architecture(self) -> Architecture:
        """Return the architecture of the row that won; another than the search found best, where several are retrained.

        Raises:
            RunFolderError: It has not been retrained.
        """
        self.folder.require_retrained()
        with reading(str(self.folder.best_metrics), "Has the search space changed?"):
            return self.components.space.architecture(Architecture(self.folder.best_scores().architecture))

    def best_metrics(self) -> dict[str, Any]:
        """Return the scores of the row that won: text, validation, test, parameters, and which row it is.

        Raises:
            RunFolderError: It has not been retrained.
        """
        self.folder.require_retrained()
        return self.folder.best_scores().model_dump()

    def trials(self) -> list[Trial]:
        """Return the trials so far, in order."""
        return sorted(self.folder.evaluated(self.components.space, self.components.objectives), key=lambda t: t.index)

    def supernet(self) -> Supernet:
        """Return the trained supernet, on the run's device.

        Raises:
            RunFolderError: It has not been trained, or belongs to another space.
        """
        self.folder.require_supernet()
        supernet = Supernet(self.components.space, self.config.seed)
        load_weights(supernet.blocks, self.folder.supernet)
        return supernet.to(self.config.training.device)

    @contextlib.contextmanager
    def _phase(self, how_to_go_on: str) -> Iterator[None]:
        """Hold the folder and compute deterministically; an interrupt, or SIGTERM, says how to go on."""
        with (
            self._holding(),
            stopped_by_sigterm(how_to_go_on),
            deterministic(self.config.training.threads, self.config.training.device),
        ):
            try:
                yield
            except KeyboardInterrupt as error:
                raise KeyboardInterrupt(f"Interrupted. {how_to_go_on}") from error

    @contextlib.contextmanager
    def _holding(self) -> Iterator[None]:
        """Keep other processes from working in the folder, and wait for those that a killed one has left."""
        if self._held:
            yield
            return
        with self.folder.locked():
            clear_remains(self.path)
            self._held = True
            try:
                yield
            finally:
                self._held = False


def run(
    config: RunConfig | str | Path | Mapping[str, Any],
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
