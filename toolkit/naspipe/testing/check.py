"""Checks: named properties of plug-ins, and their results."""

from __future__ import annotations

import contextlib
import functools
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from naspipe.errors import NaspipeError, NaspipeWarning
from naspipe.testing.subject import Subject
from naspipe.usercode import user_place

Judge = Callable[[Subject], None]


class ConformanceError(NaspipeError):
    """A plug-in lacks the property of a check; the message says how."""


class NotApplicableError(NaspipeError):
    """A check does not apply to this plug-in; the message says why."""


@dataclass(frozen=True)
class Check:
    """One property that plug-ins of a kind must have.

    Attributes:
        name: Its name in tests and tables.
        judge: Raises ``ConformanceError`` if a plug-in lacks the property, or ``NotApplicableError`` if the check does
            not apply. Any other error is a failure too.
        needs: Names of the checks that must hold before this one can be judged.
    """

    name: str
    judge: Judge
    needs: tuple[str, ...] = ()

    @property
    def shows(self) -> str:
        """The property, in one line."""
        return (self.judge.__doc__ or "").strip().splitlines()[0]


@dataclass(frozen=True)
class Result:
    """The result of a check.

    Attributes:
        check: The check.
        verdict: ``holds``, ``fails``, or ``skipped``: it does not apply, or a check that it needs fails.
        reason: The reason of a failure or of skipping; empty if it holds.
        blocked_by: The failing check that it needs, or an empty text.
    """

    check: Check
    verdict: Literal["holds", "fails", "skipped"]
    reason: str = ""
    blocked_by: str = ""


class CheckList:
    """The checks of a module, in the order in which they run; a decorator collects them."""

    def __init__(
        self, surround: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    ) -> None:
        """Begin an empty list.

        Args:
            surround: Returns the context in which each check runs.
        """
        self.checks: list[Check] = []
        self._surround = surround

    def __call__(self, *needs: str) -> Callable[[Judge], Judge]:
        """Return a decorator that adds a function as a check, under the function's name.

        Args:
            needs: Names of earlier checks that must hold first.
        """

        def add(judge: Judge) -> Judge:

            @functools.wraps(judge)
            def surrounded(subject: Subject) -> None:
                with self._surround():
                    judge(subject)

            self.checks.append(Check(judge.__name__, surrounded, needs))
            return surrounded

        return add


class Judgement:
    """The results of a plug-in's checks so far; each check is judged once."""

    def __init__(self, checks: Sequence[Check], subject: Subject) -> None:
        """Prepare; nothing is judged yet.

        Args:
            checks: All checks of the plug-in's kind, in order.
            subject: The plug-in.
        """
        self._checks = checks
        self._subject = subject
        self._results: dict[str, Result] = {}

    def all(self) -> Iterator[Result]:
        """Judge the plug-in by every check, in order."""
        for check in self._checks:
            yield self.of(check)

    def of(self, check: Check) -> Result:
        """Judge the plug-in by one check, after those that it needs."""
        if check.name not in self._results:
            self._results[check.name] = self._judge(check)
        return self._results[check.name]

    def _judge(self, check: Check) -> Result:
        for other in self._checks:
            if other.name not in check.needs:
                continue
            needed = self.of(other)
            failing = other.name if needed.verdict == "fails" else needed.blocked_by
            if failing:
                return Result(check, "skipped", f"it says nothing while {failing} fails", failing)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NaspipeWarning)
                check.judge(self._subject)
        except NotApplicableError as reason:
            return Result(check, "skipped", str(reason))
        except ConformanceError as failure:
            return Result(check, "fails", str(failure))
        except Exception as error:
            return Result(check, "fails", _describe(error))
        return Result(check, "holds")


def _describe(error: Exception) -> str:
    """Return an error of a plug-in as text, with its place."""
    if isinstance(error, NaspipeError):
        return str(error)
    place = user_place(error)
    if not place:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{last.filename}, line {last.lineno}: "
    return f"{place}{type(error).__name__}: {error}"


def require(condition: bool, message: str) -> None:
    """Raise ``ConformanceError`` with a message unless the condition holds."""
    if not condition:
        raise ConformanceError(message)
