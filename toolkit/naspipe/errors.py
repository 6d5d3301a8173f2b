"""The errors a user can meet, all children of ``NaspipeError``.

Two families decide the exit code of the command line: ``InputError`` (what was given is wrong,
nothing was started, exit code 2) and ``RunError`` (a job failed while running, exit code 1; 143 if it was
stopped by SIGTERM).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class NaspipeError(Exception):
    """Base of every error that NASPipe raises on purpose."""

    exit_code = 1


class InputError(NaspipeError):
    """What was given cannot be used; nothing has been started or written."""

    exit_code = 2


class PluginError(InputError):
    """A plug-in is unknown, ambiguous, of the wrong kind, or cannot be imported."""


class SpaceError(InputError):
    """A search space is not well formed, or nothing in it satisfies its validity rule."""


class ArchitectureError(InputError):
    """An architecture does not belong to the search space it is used with."""


class TaskError(InputError):
    """A task cannot provide its data."""


class RunFolderError(InputError):
    """A run folder exists already, is missing, or is not in the phase that was asked for."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a configuration.

    Attributes:
        path: Dotted path of the key, for example ``training.optimizer.lr``.
        message: What must hold, what was given, and what is available.
        origin: File and line, or the override, that gave the value; empty if none did.
    """

    path: str
    message: str
    origin: str = ""

    def __str__(self) -> str:
        place = f"{self.origin}: " if self.origin else ""
        return f"{place}{self.path}: {self.message}" if self.path else f"{place}{self.message}"


class ConfigError(InputError):
    """A configuration is wrong; ``problems`` lists everything that is, not only the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        title = f"{count} problem{'s' if count != 1 else ''} in the configuration:"
        super().__init__("\n  ".join([title, *(str(problem) for problem in self.problems)]))


class RunError(NaspipeError):
    """A job failed while running; what it had computed before is kept."""


class TrainingError(RunError):
    """Supernet training or retraining cannot go on."""


class SearchError(RunError):
    """A search ended without a result."""


class StoppedError(RunError):
    """A phase was asked to stop; what it goes on from has been written."""

    exit_code = 143


class NaspipeWarning(UserWarning):
    """Something works, but perhaps not as meant."""
