"""Test classes for authors of plug-ins: derive from one and supply the fixture ``plugin``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from naspipe.testing.check import Check, Judgement
from naspipe.testing.kit import checks_of
from naspipe.testing.subject import Subject, as_subject


class _Cases:
    """The base of the classes: each check is a test, which fails with the reason of the check."""

    kind: ClassVar[str]
    _kept: ClassVar[tuple[Subject, Judgement] | None] = None

    @pytest.fixture
    def plugin(self) -> Subject | type | str:
        """Return the plug-in: its class, its name or reference, or a ``Subject`` with parameters."""
        raise NotImplementedError(f"{type(self).__name__} must have a fixture `plugin` that returns a {self.kind}.")

    @pytest.fixture
    def subject(self, plugin: Subject | type | str) -> Subject:
        """Return the plug-in as one subject for all tests of the class."""
        given = as_subject(plugin, self.kind)
        kept = type(self)._kept
        if kept is not None and kept[0].is_like(given):
            return kept[0]
        given.prepare()
        return given

    @classmethod
    def _judgement(cls, subject: Subject) -> Judgement:
        """Return the judgement of a subject, which keeps results from one test to the next."""
        if cls._kept is None or cls._kept[0] is not subject:
            cls._kept = (subject, Judgement(checks_of(cls.kind), subject))
        return cls._kept[1]


def _with_tests(cls: type[_Cases]) -> type[_Cases]:
    """Give a class a test for each check of its kind."""
    for check in checks_of(cls.kind):
        setattr(cls, f"test_{check.name}", _test(check))
    return cls


def _test(check: Check) -> Callable[[Any, Subject], None]:
    def test(self: Any, subject: Subject) -> None:
        result = self._judgement(subject).of(check)
        if result.verdict == "fails":
            pytest.fail(result.reason, pytrace=False)
        if result.verdict == "skipped":
            pytest.skip(result.reason)

    test.__doc__ = check.shows
    return test


@_with_tests
class SearchSpaceCases(_Cases):
    """Every check of a search space; give its task as ``Subject(MySpace, task=MyTask)``."""

    kind = "space"


@_with_tests
class SamplerCases(_Cases):
    """Every check of a sampler."""

    kind = "sampler"


@_with_tests
class StrategyCases(_Cases):
    """Every check of a strategy."""

    kind = "strategy"


@_with_tests
class ExecutorCases(_Cases):
    """Every check of an executor."""

    kind = "executor"


@_with_tests
class ObjectiveCases(_Cases):
    """Every check of an objective that is a measure."""

    kind = "objective"


@_with_tests
class TaskCases(_Cases):
    """Every check of a task."""

    kind = "task"
