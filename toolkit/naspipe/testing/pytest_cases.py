"""Test classes for authors of plug-ins: derive from one and supply the fixture ``plugin``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from naspipe.testing.check import Check, Judgement
from naspipe.testing.kit import checks_of
from naspipe.testing.subject import Subject, as_subject


class _Cases:
    """What the classes have in common: each check is a test, which fails with the check's reason."""

    kind: ClassVar[str]
    _kept: ClassVar[tuple[Subject, Judgement] | None] = None

    @pytest.fixture
    def plugin(self) -> Subject | type | str:
        """Return the plug-in: its class, its name or reference, or a ``Subject`` with parameters."""
        raise NotImplementedError(f"{type(self).__name__} must have a fixture `plugin` that returns a {self.kind}.")

    @pytest.fixture
    def judgement(self, plugin: Subject | type | str) -> Judgement:
        """Return the judgement of the plug-in, the same for all tests of the class."""
        given = as_subject(plugin, self.kind)
        kept = type(self)._kept
        if kept is None or not kept[0].is_like(given):
            given.prepare()
            kept = (given, Judgement(checks_of(self.kind), given))
            type(self)._kept = kept
        return kept[1]


def _with_tests(cls: type[_Cases]) -> type[_Cases]:
    """Give a class a test for each check of its kind."""
    for check in checks_of(cls.kind):
        setattr(cls, f"test_{check.name}", _test(check))
    return cls


def _test(check: Check) -> Callable[[Any, Judgement], None]:
    def test(self: Any, judgement: Judgement) -> None:
        result = judgement.of(check)
        if result.verdict == "fails":
            pytest.fail(result.reason, pytrace=False)
        if result.verdict == "skipped":
            pytest.skip(result.reason)

    test.__doc__ = check.shows
    return test


@_with_tests
class SearchSpaceCases(_Cases):
    """Every check of a search space; give the task that it is for as ``Subject(MySpace, task=MyTask)``."""

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
