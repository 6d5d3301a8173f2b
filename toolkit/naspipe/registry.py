"""The registry of plug-ins, which are found by decorator, by entry point, or by reference.

A plug-in is a class of one of six kinds. It is imported only when it is used, so one that fails to import disturbs no
other.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from naspipe.errors import InputError, PluginError
from naspipe.usercode import user_place, user_traceback
from naspipe.wording import listing, nearest

Class = TypeVar("Class", bound=type)


@dataclass(frozen=True)
class Plugin:
    """One known plug-in.

    Attributes:
        kind: ``space``, ``sampler``, ``strategy``, ``executor``, ``task`` or ``objective``.
        name: Its name in configurations.
        origin: Its class and distribution or file, for messages.
        load: Imports it and returns its class; raises any error of the import.
    """

    kind: str
    name: str
    origin: str
    load: Callable[[], object]


class Registry:
    """The plug-ins of one kind."""

    def __init__(self, kind: str, base: str) -> None:
        """Make an empty registry.

        Args:
            kind: ``space``, ``sampler``, ``strategy``, ``executor``, ``task`` or ``objective``.
            base: ``module:Class``, the base class of its plug-ins; imported when it is used.
        """
        self.kind = kind
        self.group = "naspipe.strategies" if kind == "strategy" else f"naspipe.{kind}s"
        self._base_reference = base
        self._decorated: dict[str, Plugin] = {}

    @property
    def base(self) -> type:
        """The base class of all plug-ins of this kind."""
        module, _, name = self._base_reference.partition(":")
        base: type = getattr(importlib.import_module(module), name)
        return base

    @property
    def is_imported(self) -> bool:
        """Whether the module of the base class has been imported."""
        return self._base_reference.partition(":")[0] in sys.modules

    def register(self, name: str) -> Callable[[Class], Class]:
        """Return a class decorator that registers a plug-in under ``name``.

        Raises:
            PluginError: The name is taken, or the class is not of this kind. The same definition, run again as in
                a notebook, replaces the first.
        """

        def decorate(cls: Class) -> Class:
            self._check_class(cls, name)
            origin = f"{cls.__module__}.{cls.__qualname__} in {_file_of(cls)}"
            for other in self._known(name):
                if other.origin != origin:
                    raise _duplicate(self.kind, name, other.origin, origin)
            self._decorated[name] = Plugin(self.kind, name, origin, lambda: cls)
            return cls

        return decorate

    def plugins(self) -> list[Plugin]:
        """Return all known plug-ins, sorted by name; nothing is imported."""
        known = [*self._decorated.values(), *_entry_points(self.kind, self.group)]
        return sorted(known, key=lambda plugin: (plugin.name, plugin.origin))

    def names(self) -> list[str]:
        """Return the known names in order."""
        return sorted({plugin.name for plugin in self.plugins()})

    def _known(self, name: str) -> list[Plugin]:
        return [plugin for plugin in self.plugins() if plugin.name == name]

    def find(self, name: str) -> Plugin:
        """Return a plug-in by its registered name, without importing it.

        Raises:
            PluginError: The name is unknown, or two plug-ins have it.
        """
        found = self._known(name)
        if not found and name.endswith(".py"):
            raise PluginError(
                f"a {self.kind} in a file must be named by file and class, but got {name!r}. "
                f"Write {name}:Class, with the name of the class."
            )
        if not found:
            raise PluginError(
                f"there is no {self.kind} {name!r}.{nearest(name, self.names())} "
                f"Known: {listing(self.names())}. Or give a reference: file.py:Class or package.module:Class."
            )
        if len(found) > 1:
            raise _duplicate(self.kind, name, found[0].origin, found[1].origin)
        return found[0]

    def get(self, name: str) -> type:
        """Return the class of a plug-in, by registered name or by reference.

        Args:
            name: A registered name, ``path/to/file.py:Class`` (relative to the working directory) or
                ``package.module:Class``.

        Raises:
            PluginError: It is unknown or of another kind, or fails to import (the message has the traceback).
        """
        load: Callable[[], object]
        load = self.find(name).load if ":" not in name else lambda: load_reference(name, self.base)
        with importing(f"{self.kind} {name!r}"):
            loaded = load()
        return self._check_class(loaded, name)

    def require_elsewhere(self, name: str, reason: str, remedy: str) -> None:
        """Raise an error if other processes cannot find a plug-in: it was registered by a decorator, or in a session.

        Args:
            name: Name or reference of the plug-in.
            reason: The setting that starts other processes.
            remedy: An alternative to naming the class by its file.

        Raises:
            InputError: Other processes cannot find it.
        """
        cls = self.get(name)
        if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__ or name in self._decorated:
            raise InputError(
                f"{reason} starts processes, but {self.kind} {name!r} is known to this process only "
                f"({cls.__module__}.{cls.__qualname__}). Put its class into a file or a package and name it as "
                f"file.py:Class or package.module:Class, or {remedy}."
            )

    def _check_class(self, loaded: object, name: str) -> type:
        base = self.base
        if not (isinstance(loaded, type) and issubclass(loaded, base)):
            given = f"the class {loaded.__qualname__}" if isinstance(loaded, type) else repr(loaded)
            bases = [b.__name__ for b in inspect.getmro(loaded)[1:-1]] if isinstance(loaded, type) else []
            derived = f" (derived from {listing(bases)})" if bases else ""
            raise PluginError(
                f"{self.kind} {name!r} must be a subclass of naspipe.{base.__name__}, but is {given}{derived}."
            )
        if inspect.isabstract(loaded):
            missing = listing(sorted(getattr(loaded, "__abstractmethods__")))  # noqa: B009  # set by ABCMeta
            raise PluginError(f"{self.kind} {name!r} must implement {missing}, but does not.")
        return loaded


def _duplicate(kind: str, name: str, first: str, second: str) -> PluginError:
    return PluginError(
        f"two plug-ins of kind {kind} are named {name!r}: one from {first}, one from {second}. "
        "Rename one, or refer to it as package.module:Class."
    )


def _file_of(cls: type) -> str:
    try:
        return inspect.getfile(cls)
    except (TypeError, OSError):
        return "an interactive session"


def _entry_points(kind: str, group: str) -> list[Plugin]:
    return _scan(kind, group, tuple(sys.path))


@functools.cache
def _scan(kind: str, group: str, path: tuple[str, ...]) -> list[Plugin]:
    # Reading the entry points takes milliseconds, and a run does so dozens of times.
    plugins = []
    for entry in importlib.metadata.entry_points(group=group):
        distribution = entry.dist.name if entry.dist is not None else "unknown distribution"
        plugins.append(Plugin(kind, entry.name, f"{entry.value} in {distribution}", entry.load))
    return plugins


@contextmanager
def importing(what: str) -> Iterator[None]:
    """Turn any error of an import into a ``PluginError``.

    Args:
        what: The plug-in that is imported, for example ``space 'mine'``.
    """
    try:
        yield
    except PluginError:
        raise
    except ModuleNotFoundError as error:
        message = f"{what} failed to import: {user_place(error)}{type(error).__name__}: {error}"
        raise PluginError(message) from error
    except (Exception, SystemExit) as error:
        raise PluginError(f"{what} failed to import:\n{user_traceback(error)}") from error


def load_reference(reference: str, base: type) -> object:
    """Import a class by its reference.

    Args:
        reference: ``path/to/file.py:Class`` (relative to the working directory) or ``package.module:Class``.
        base: The expected base class; an error lists its subclasses.

    Raises:
        PluginError: There is no such file, or it has nothing of this name.
    """
    place, _, attribute = reference.rpartition(":")
    module = load_file(Path(place)) if is_file_reference(reference) else importlib.import_module(place)
    if not hasattr(module, attribute):
        classes = {name: value for name, value in vars(module).items() if isinstance(value, type)}
        fitting = [name for name, value in classes.items() if issubclass(value, base) and not inspect.isabstract(value)]
        found = fitting or list(classes)
        raise PluginError(f"{place} has no {attribute!r}.{nearest(attribute, found)} It has {listing(found)}.")
    return getattr(module, attribute)


def is_file_reference(name: str) -> bool:
    """Tell whether a plug-in's name refers to a file, as in ``my_space.py:MySpace``."""
    return name.rpartition(":")[0].endswith(".py")


def load_file(path: Path) -> ModuleType:
    """Import a Python file once per process, under a name of its own.

    It may import other files of its folder, as a script may.

    Raises:
        PluginError: There is no such file, or it imports a file of its folder whose name another module already has.
    """
    path = path.resolve()
    if not path.is_file():
        raise PluginError(f"the file of a plug-in must exist, but there is no {path}.")
    digest = hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()
    name = f"naspipe_file_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _refuse_hidden_neighbours(path)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(path.parent))
    return module


def _refuse_hidden_neighbours(path: Path) -> None:
    """Raise an error if a plug-in imports a file of its folder, but another module of this name is already imported."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # The import itself gives the better message.
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        for root in {name.partition(".")[0] for name in names}:
            neighbour = path.parent / f"{root}.py"
            loaded = getattr(sys.modules.get(root), "__file__", None)
            if neighbour.is_file() and loaded is not None and Path(loaded).resolve() != neighbour:
                raise PluginError(
                    f"{path.name} imports {root!r}, which is {neighbour}, but a module of this name was already "
                    f"imported from {loaded}. Rename {neighbour.name}."
                )


spaces = Registry("space", "naspipe.space:SearchSpace")
samplers = Registry("sampler", "naspipe.space.sampler:Sampler")
strategies = Registry("strategy", "naspipe.search.strategy:Strategy")
executors = Registry("executor", "naspipe.pipeline.executor:Executor")
tasks = Registry("task", "naspipe.tasks.task:Task")

objectives = Registry("objective", "naspipe.search.measure:Measure")

REGISTRIES = (spaces, samplers, strategies, executors, tasks, objectives)


def registries_of(name: str) -> list[Registry]:
    """Return the registries that have a plug-in of this name, or the registry for the class of a reference.

    Raises:
        PluginError: There is none, or the reference fails to import.
    """
    if ":" not in name:
        owners = [registry for registry in REGISTRIES if name in registry.names()]
        if not owners and name.endswith(".py"):
            raise PluginError(f"a plug-in in a file must be named by file and class, as in {name}:Class.")
        if not owners:
            known = sorted({known for registry in REGISTRIES for known in registry.names()})
            raise PluginError(f"there is no plug-in {name!r}.{nearest(name, known)} Known: {listing(known)}.")
        return owners
    for registry in REGISTRIES:
        try:
            registry.get(name)
        except PluginError as error:
            if "must be a subclass" in str(error):
                continue
            raise
        return [registry]
    raise PluginError(f"{name} is not a plug-in: its class must be a subclass of one of {_bases()}.")


def registry_of(cls: type) -> Registry:
    """Return the registry for a plug-in's class.

    Raises:
        PluginError: The class is not a plug-in.
    """
    for registry in REGISTRIES:
        # A base class that is not imported has no subclasses. So a sampler is found without importing torch.
        if isinstance(cls, type) and registry.is_imported and issubclass(cls, registry.base):
            return registry
    raise PluginError(f"a plug-in must be a subclass of one of {_bases()}, but {cls!r} is none.")


def _bases() -> str:
    return listing(f"naspipe.{registry.base.__name__}" for registry in REGISTRIES)


def register_space(name: str) -> Callable[[Class], Class]:
    """Register a ``SearchSpace`` under ``name``; a class decorator."""
    return spaces.register(name)


def register_sampler(name: str) -> Callable[[Class], Class]:
    """Register a ``Sampler`` under ``name``; a class decorator."""
    return samplers.register(name)


def register_strategy(name: str) -> Callable[[Class], Class]:
    """Register a ``Strategy`` under ``name``; a class decorator."""
    return strategies.register(name)


def register_executor(name: str) -> Callable[[Class], Class]:
    """Register an ``Executor`` under ``name``; a class decorator."""
    return executors.register(name)


def register_task(name: str) -> Callable[[Class], Class]:
    """Register a ``Task`` under ``name``; a class decorator."""
    return tasks.register(name)
