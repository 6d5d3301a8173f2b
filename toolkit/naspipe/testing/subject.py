"""Subject: a plug-in that is checked, with its parameters, its task and its space."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from naspipe.config.parameters import parameters_model, parameters_of
from naspipe.config.resolve import construct_class
from naspipe.errors import InputError, PluginError
from naspipe.registry import Registry, registries_of, registry_of
from naspipe.wording import fault_of, listing

if TYPE_CHECKING:
    from naspipe.tasks.data import Splits
    from naspipe.tasks.task import Task

SEED = 0
"""The seed of everything in the kit."""

FILE_PREFIX = "naspipe_file_"
"""The prefix of the names of modules that were imported by their file."""


@dataclass(eq=False)
class Subject:
    """A plug-in to check.

    Attributes:
        plugin: Its class, its registered name, or a reference such as ``file.py:Class``.
        parameters: The parameters of its constructor, as in a configuration.
        task: For a space or an objective: the task that gives the batches. It has no effect for other kinds.
        space: For a task: a space that gives outputs for its loss. For an objective: the space of the measured
            architectures, by default nasbench201. For a sampler or a strategy: the only space that it is for, instead
            of those of the kit. It has no effect for other kinds.
        only: The kind of a name that several kinds have.
    """

    plugin: type | str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    task: Subject | type | str | None = None
    space: Subject | type | str | None = None
    only: str | None = None

    @cached_property
    def cls(self) -> type:
        """The class.

        Raises:
            PluginError: There is no plug-in of this name, or the class is not one.
        """
        if isinstance(self.plugin, str):
            owners = registries_of(self.plugin)
            fitting = [owner for owner in owners if self.only in (None, owner.kind)]
            return (fitting or owners)[0].get(self.plugin)
        registry_of(self.plugin)
        return self.plugin

    @property
    def registry(self) -> Registry:
        """The plug-ins of its kind."""
        return registry_of(self.cls)

    @property
    def kind(self) -> str:
        """``space``, ``sampler``, ``strategy``, ``executor``, ``task`` or ``objective``."""
        return self.registry.kind

    def make(self) -> Any:
        """Construct the plug-in.

        Raises:
            PluginError: It refuses its parameters.
        """
        title = f"{self.kind} {self.cls.__name__}"
        return construct_class(self.cls, title, _validated(self.cls, title, self.parameters))

    @cached_property
    def reference(self) -> str:
        """The reference by which another process finds the class: ``module:Class``, or ``file.py:Class``.

        Raises:
            PluginError: Another process cannot find it.
        """
        cls = self.cls
        module = sys.modules.get(cls.__module__)
        path = getattr(module, "__file__", None)
        if path is None or "." in cls.__qualname__ or getattr(module, cls.__qualname__, None) is not cls:
            raise PluginError(
                f"other processes find a plug-in by file or module and class, but {cls.__module__}.{cls.__qualname__} "
                "is not a class at the top of a file. Put it there."
            )
        by_file = cls.__module__ == "__main__" or cls.__module__.startswith(FILE_PREFIX)
        return f"{Path(path).resolve() if by_file else cls.__module__}:{cls.__qualname__}"

    @property
    def file(self) -> str:
        """The file of the class."""
        return inspect.getfile(self.cls)

    @property
    def section(self) -> dict[str, Any]:
        """Its section of a configuration."""
        return {"name": self.reference, **self.parameters}

    @cached_property
    def task_subject(self) -> Subject:
        """The task of a space or an objective; by default digits."""
        return as_subject(self.task if self.task is not None else "digits", "task")

    @cached_property
    def space_subject(self) -> Subject | None:
        """The space of a task, an objective, a sampler or a strategy, if one is given."""
        return None if self.space is None else as_subject(self.space, "space")

    @cached_property
    def loaded(self) -> tuple[Task, Splits]:
        """The task and its data: for a task itself, for a space or an objective its task.

        Raises:
            TaskError: The data cannot be loaded.
        """
        from naspipe.tasks.loading import load_splits

        task: Task = (self if self.kind == "task" else self.task_subject).make()
        return task, load_splits(task, SEED)

    def is_like(self, other: Subject) -> bool:
        """Tell whether another subject is the same plug-in with the same parameters, task and space."""
        return self._key() == other._key()

    def _key(self) -> tuple[object, ...]:
        others = (
            as_subject(one, kind)._key() if one is not None else None
            for one, kind in ((self.task, "task"), (self.space, "space"))
        )
        return self.cls, json.dumps(dict(self.parameters), sort_keys=True), *others

    def to_json(self) -> dict[str, Any]:
        """Return a description from which another process constructs the same plug-in."""
        return {
            "reference": self.reference,
            "file": self.file,
            "parameters": dict(self.parameters),
            "task": self.task_subject.to_json() if self.kind in ("space", "objective") else None,
            "space": None if self.space_subject is None else self.space_subject.to_json(),
        }

    def prepare(self) -> None:
        """Find and construct the plug-in, its task and its space, before any check.

        Raises:
            InputError: One cannot be found or constructed, or the data of the task cannot be loaded.
        """
        self.make()
        if self.kind in ("space", "objective"):
            _ = self.loaded
        if self.space_subject is not None:
            self.space_subject.make()


def as_subject(plugin: Subject | type | str, kind: str) -> Subject:
    """Return a plug-in as a subject, if it is of this kind.

    Raises:
        PluginError: It is of another kind.
    """
    subject = plugin if isinstance(plugin, Subject) else Subject(plugin)
    if subject.only is None:
        subject = Subject(subject.plugin, subject.parameters, subject.task, subject.space, only=kind)
    if subject.kind != kind:
        raise PluginError(f"a {kind} must be given, but {subject.cls.__qualname__} is a {subject.kind}.")
    return subject


def _validated(cls: type, title: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters and all defaults, as in a resolved configuration.

    Raises:
        InputError: A parameter is unknown, missing or wrong.
    """
    known = parameters_of(cls)
    model = parameters_model(title, known)
    try:
        validated = model.model_validate_json(json.dumps(dict(parameters)))
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, detail['loc']))} "
            + ("is unknown" if detail["type"] == "extra_forbidden" else fault_of(detail))
            for detail in error.errors(include_url=False)
        ]
        takes = listing(parameter.name for parameter in known)
        raise InputError(f"the parameters of {title} are wrong: {'; '.join(faults)}. It takes {takes}.") from error
    except TypeError as error:
        raise InputError(f"the parameters of {title} must be numbers, texts, lists or mappings: {error}.") from error
    return validated.model_dump(mode="json", by_alias=True)
