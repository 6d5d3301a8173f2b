"""The kit as a whole: the checks of each kind, and the judgement of a plug-in."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from naspipe.testing.check import Check, Judgement, Result
from naspipe.testing.subject import Subject

# Imported when used, since the checks of spaces, objectives and tasks need torch.
_MODULES = {
    "space": ("space_texts", "space_layers", "space_runs"),
    "sampler": ("samplers",),
    "strategy": ("strategies",),
    "executor": ("executors",),
    "task": ("tasks",),
    "objective": ("objectives",),
}


def checks_of(kind: str) -> tuple[Check, ...]:
    """Return the checks of a kind, in the order in which they run.

    Args:
        kind: ``space``, ``sampler``, ``strategy``, ``executor``, ``task`` or ``objective``.
    """
    found: list[Check] = []
    for module in _MODULES[kind]:
        found += importlib.import_module(f"naspipe.testing.{module}").checks.checks
    names = [check.name for check in found]
    assert len(set(names)) == len(names), "checks of a kind have different names"
    for place, check in enumerate(found):
        assert set(check.needs) <= set(names[:place]), f"{check.name} must come after what it needs"
    return tuple(found)


def check_plugin(
    plugin: Subject | type | str,
    parameters: Mapping[str, Any] | None = None,
    *,
    task: Subject | type | str | None = None,
    space: Subject | type | str | None = None,
) -> Iterator[Result]:
    """Check a plug-in of any kind, and yield the result of each check.

    Args:
        plugin: Its class, its registered name, or a reference such as ``file.py:Class``.
        parameters: The parameters of its constructor.
        task: For a space or an objective: the task that gives the batches; by default digits.
        space: For a task: a space that gives outputs for its loss. For an objective: the space of the measured
            architectures. For a sampler or a strategy: the only space that it is for.

    Returns:
        An iterator, which runs the checks one by one.

    Raises:
        InputError: The plug-in cannot be found or constructed, or the data of the task cannot be loaded. This is
            raised before any check.
    """
    known = plugin if isinstance(plugin, Subject) else Subject(plugin)
    subject = known
    if parameters is not None or task is not None or space is not None:
        values = known.parameters if parameters is None else parameters
        subject = Subject(known.plugin, values, task or known.task, space or known.space, known.only)
    subject.prepare()
    return Judgement(checks_of(subject.kind), subject).all()
