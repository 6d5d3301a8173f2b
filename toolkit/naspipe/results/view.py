"""A read-only view of a run's folder: configuration, trials, rows, digests and results."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from torch import nn

from naspipe.config.resolve import resolve_file
from naspipe.config.schema import RunConfig
from naspipe.errors import RunFolderError
from naspipe.files import digest_tensors, load_tensors, reading
from naspipe.records import RowScores
from naspipe.results.folder import RunFolder
from naspipe.results.retraining_rows import RetrainingRow, plan_rows, row_folder
from naspipe.search.trial import Trial
from naspipe.space import Architecture
from naspipe.supernet.supernet import Supernet, build_subnet
from naspipe.tasks.data import Splits
from naspipe.training.components import Components
from naspipe.training.context import RunContext

MISMATCHES = 3
"""Number of mismatches that an error shows."""


class RunView:
    """The results that a run's folder holds so far. A view changes nothing, and takes no lock.

    Attributes:
        folder: The paths of its files.
    """

    def __init__(self, folder: RunFolder, config: RunConfig | RunContext) -> None:
        """Use ``RunView.open``."""
        self.folder = folder
        self._config = config.config if isinstance(config, RunContext) else config
        self._context = config if isinstance(config, RunContext) else None
        self._supernet: Supernet | None = None

    @classmethod
    def open(cls, path: str | Path) -> RunView:
        """Open a run's folder.

        Args:
            path: The folder.

        Raises:
            RunFolderError: It is no run folder.
            ConfigError: A plug-in that the run uses cannot be found any more.
        """
        folder, config = read_run(path)
        return cls(folder, config)

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder.root

    @property
    def config(self) -> RunConfig:
        """The run's configuration."""
        return self._config if self._context is None else self._context.config

    @property
    def context(self) -> RunContext:
        """The run's plug-ins, data and costs; made when they are first asked for.

        Raises:
            ConfigError: A plug-in refuses its parameters.
        """
        if self._context is None:
            self._context = RunContext.load(self._config)
        return self._context

    @property
    def components(self) -> Components:
        """The run's plug-ins."""
        return self.context.components

    @property
    def splits(self) -> Splits:
        """The task's data, loaded when it is first asked for."""
        return self.context.splits

    @property
    def digest(self) -> str:
        """SHA-256 of the trained supernet: names, types, shapes and bits of its weights.

        Raises:
            RunFolderError: The supernet has not been trained.
        """
        self.folder.require_supernet()
        return digest_tensors(load_tensors(self.folder.supernet))

    def trials(self) -> list[Trial]:
        """Return the trials so far, in order.

        Raises:
            RunFolderError: A line is damaged.
        """
        found = self.folder.evaluated(self.components.space, self.components.objectives)
        return sorted(found, key=lambda trial: trial.index)

    def best_architecture(self) -> Architecture:
        """Return the architecture that the search found best.

        Raises:
            RunFolderError: The search has not finished.
        """
        self.folder.require_best()
        best = self.folder.best_trial()
        with reading(str(self.folder.best_architecture), "Has the search space changed?"):
            return self.components.space.architecture(Architecture(best.architecture))

    def rows(self) -> list[RetrainingRow]:
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
        """Return the architecture of the row that won.

        Where several architectures are retrained it may be another than the search found best.

        Raises:
            RunFolderError: Nothing has been retrained.
        """
        self.folder.require_retrained()
        with reading(str(self.folder.best_metrics), "Has the search space changed?"):
            return self.components.space.architecture(Architecture(self.folder.best_scores().architecture))

    def best_metrics(self) -> dict[str, Any]:
        """Return the scores of the row that won: text, validation, test, parameters, trial, init and seed.

        Raises:
            RunFolderError: Nothing has been retrained.
        """
        self.folder.require_retrained()
        return self.folder.best_scores().model_dump()

    def best(self) -> nn.Module:
        """Return the retrained subnet that won, as an ordinary module in evaluation mode, on the CPU.

        Raises:
            RunFolderError: Nothing has been retrained.
        """
        module = build_subnet(self.components.space, self.retrained_architecture(), self.config.seed)
        load_weights(module, self.folder.best_model)
        return module.eval()

    def supernet(self) -> Supernet:
        """Return the trained supernet, on the run's device; each call reads it from its file.

        Raises:
            RunFolderError: It has not been trained, or belongs to another space.
        """
        self.folder.require_supernet()
        supernet = Supernet(self.components.space, self.config.seed)
        load_weights(supernet.blocks, self.folder.supernet)
        return supernet.to(self.config.training.device)

    def shared_supernet(self) -> Supernet:
        """Return the trained supernet that the phases share, read once; the caller must not change it.

        Raises:
            RunFolderError: As ``supernet``.
        """
        if self._supernet is None:
            self._supernet = self.supernet()
        return self._supernet

    def release_supernet(self) -> None:
        """Free the memory of the shared supernet; it is read again when it is needed."""
        self._supernet = None


def read_run(path: str | Path) -> tuple[RunFolder, RunConfig]:
    """Return the files of a run and its configuration.

    Args:
        path: The run's folder.

    Raises:
        RunFolderError: It is no run folder.
        ConfigError: A plug-in that the run uses cannot be found any more.
    """
    folder = RunFolder(Path(path))
    if not folder.config.is_file():
        raise RunFolderError(f"{path} is no run folder: there is no {folder.config.name} in it.")
    config, _ = resolve_file(folder.config)
    return folder, config


def load_weights(module: nn.Module, path: Path) -> None:
    """Load a safetensors file into a module.

    Raises:
        RunFolderError: The file is damaged, or belongs to another module.
    """
    try:
        module.load_state_dict(load_tensors(path))
    except RuntimeError as error:
        found = [textwrap.shorten(line, 200) for line in str(error).splitlines()[1:]]
        rest = f"\n  and {len(found) - MISMATCHES} more" if len(found) > MISMATCHES else ""
        shown = "".join(f"\n  {line}" for line in found[:MISMATCHES])
        raise RunFolderError(
            f"the weights in {path} must fit the run's search space, but do not. The space, its plug-in or "
            f"config.yaml has changed since they were saved; torch finds:"
            f"{shown}{rest}"
        ) from error
