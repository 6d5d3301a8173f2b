"""The errors that a user can meet, all children of ``NaspipeError``.

Two families decide the exit code of the command line. ``InputError``: the input is wrong, and nothing was started (exit
code 2). ``RunError``: a job failed while running (exit code 1, or 143 if SIGTERM stopped it).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class NaspipeError(Exception):
    """Base of every error that NASPipe raises on purpose."""

    exit_code = 1


class InputError(NaspipeError):
    """The input cannot be used; nothing was started or written."""

    exit_code = 2


class PluginError(InputError):
    """A plug-in is unknown, ambiguous or of the wrong kind, or it cannot be imported."""


class SpaceError(InputError):
    """A search space is malformed, or its validity rule admits no architecture."""


class ArchitectureError(InputError):
    """An architecture does not belong to the search space it is used with."""


class TaskError(InputError):
    """A task cannot provide its data."""


class RunFolderError(InputError):
    """A run folder exists already, is missing or damaged, or is not in the required phase."""


@dataclass(frozen=True)
class Problem:
    """One fault of a configuration.

    Attributes:
        path: Dotted path of the key, for example ``training.optimizer.lr``.
        message: What must hold, what was given, and what is available.
        origin: File and line, or the override, that gave the value; empty for a default.
    """

    path: str
    message: str
    origin: str = ""

    def __str__(self) -> str:
        place = f"{self.origin}: " if self.origin else ""
        return f"{place}{self.path}: {self.message}" if self.path else f"{place}{self.message}"


class ConfigError(InputError):
    """A configuration is wrong; ``problems`` lists all of its faults."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        title = f"{count} problem{'s' if count != 1 else ''} in the configuration:"
        super().__init__("\n  ".join([title, *(str(problem) for problem in self.problems)]))


class RunError(NaspipeError):
    """A job failed while running; its earlier results are kept."""


class TrainingError(RunError):
    """Supernet training or retraining failed."""


class SearchError(RunError):
    """A search ended without a result."""


class StoppedError(RunError):
    """A phase stopped on request; it has written all that it resumes from."""

    exit_code = 143


class NaspipeWarning(UserWarning):
    """Something works, but perhaps not as intended."""
