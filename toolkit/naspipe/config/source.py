"""YAML with positions: the values that a user wrote, with their file and line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from naspipe.errors import ConfigError, Problem

Key = tuple[str | int, ...]
"""The path of a value: keys of mappings and indices of lists."""


class _Loader(yaml.SafeLoader):
    """YAML's safe loader with the scalars of YAML 1.2: 1e-3 is a number, ``no`` and 1:30 are texts."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
    ("null", r"~|null|Null|NULL|", "~nN"),
):
    # The key "" stands for a scalar without a first character, which is null.
    _firsts = [*_first, ""] if _tag == "null" else list(_first)
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _firsts)


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = str(node.value)
    return int(text, 0) if text[:2] in ("0o", "0x") else int(text)


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)


OVERRIDE = "--set "
"""The beginning of an override's origin."""


@dataclass
class Source:
    """A tree of values, the origin of each, and the faults found while reading them."""

    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[Key, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    directory: Path = field(default_factory=Path.cwd)

    def origin(self, key: Key) -> str:
        """Return the origin of a value, or else of the innermost section around it."""
        while key and key not in self.origins:
            key = key[:-1]
        return self.origins.get(key, "")

    def origin_of_all(self, key: Key) -> str:
        """Return the origin of a value, and every override of a value below it."""
        below = [text for known, text in self.origins.items() if known[: len(key)] == key]
        overrides = [text for text in below if text.startswith(OVERRIDE)]
        return ", ".join(text for text in dict.fromkeys([self.origin(key), *overrides]) if text)

    def is_override(self, key: Key) -> bool:
        """Tell whether an override gave the value at ``key``, or a section around it."""
        return self.origin(key).startswith(OVERRIDE)

    def get(self, key: Key) -> Any:
        """Return the value at ``key``, or None if there is none."""
        value: Any = self.data
        for part in key:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return None
        return value


def path_text(key: Key) -> str:
    """Return a path as text, such as ``search.objectives[0]``."""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read_file(path: Path) -> Source:
    """Read a YAML file.

    Raises:
        ConfigError: It cannot be read, is not YAML, or is not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError([Problem("", f"cannot be read: {reason}.", str(path))]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([Problem("", f"must be UTF-8 text, but {error}.", str(path))]) from error
    return read_text(text, str(path), path.resolve().parent)


def read_text(text: str, name: str, directory: Path) -> Source:
    """Read YAML from a text.

    Args:
        text: The YAML.
        name: The name of its origin, for messages.
        directory: The folder that relative references to files start from.

    Raises:
        ConfigError: It is not YAML, or not a mapping.
    """
    source = Source(directory=directory)
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        detail = getattr(error, "problem", None) or str(error)
        raise ConfigError([Problem("", f"is not YAML: {detail}.", f"{name}{line}")]) from error
    if node is None:
        return source
    value = _construct(node, (), name, source)
    if not isinstance(value, dict):
        raise ConfigError([Problem("", f"must be a mapping, but is {value!r}.", f"{name}:1")])
    source.data = value
    return source


def _construct(node: yaml.Node, key: Key, name: str, source: Source) -> Any:
    origin = f"{name}:{node.start_mark.line + 1}"
    source.origins.setdefault(key, origin)
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place = f"{name}:{key_node.start_mark.line + 1}"
            inner: Key = (*key, str(getattr(key_node, "value", "")))
            if not isinstance(key_node, yaml.ScalarNode):
                source.problems.append(Problem(path_text(key), "a key must be a word.", place))
            elif inner[-1] in result:
                first = source.origins[inner]
                message = f"duplicate key: it is given at {first} already. Keep one of the two."
                source.problems.append(Problem(path_text(inner), message, place))
            else:
                source.origins[inner] = place
                result[str(key_node.value)] = _construct(value_node, inner, name, source)
        return result
    if isinstance(node, yaml.SequenceNode):
        return [_construct(item, (*key, index), name, source) for index, item in enumerate(node.value)]
    return _scalar(node, path_text(key), origin, source)


def _scalar(node: yaml.Node, path: str, origin: str, source: Source) -> Any:
    loader = _Loader("")
    try:
        return loader.construct_object(node)
    except (yaml.YAMLError, ValueError) as error:
        detail = getattr(error, "problem", None) or str(error)
        source.problems.append(Problem(path, f"is not a plain value: {detail}.", origin))
        return None
    finally:
        loader.dispose()


def apply_overrides(source: Source, overrides: Sequence[str]) -> None:
    """Apply texts such as ``path.to.key=value`` in order; the values are YAML.

    A mapping as a value replaces the whole mapping. Faults are added to the problems of the source.
    """
    for override in overrides:
        origin = f"{OVERRIDE}{override}"
        path, equals, text = override.partition("=")
        parts = path.split(".")
        if not equals or not all(parts):
            source.problems.append(
                Problem("", "must have the form path.to.key=value, as in training.subnets=500.", origin)
            )
            continue
        target: Any = source.data
        for depth, part in enumerate(parts[:-1]):
            if part not in target:
                source.origins[tuple(parts[: depth + 1])] = origin
            inner = target.setdefault(part, {})
            if not isinstance(inner, dict):
                where = ".".join(parts[: depth + 1])
                message = f"has no keys to set: it is {inner!r}. Set {where} itself."
                source.problems.append(Problem(where, message, origin))
                break
            target = inner
        else:
            key: Key = tuple(parts)
            for old in [known for known in source.origins if known[: len(key)] == key]:
                del source.origins[old]
            try:
                node = yaml.compose(text, Loader=_Loader)
            except yaml.YAMLError as error:
                message = f"is not YAML: {getattr(error, 'problem', None) or error}."
                source.problems.append(Problem(path, message, origin))
                continue
            target[parts[-1]] = None if node is None else _construct(node, key, "--set", source)
            source.origins[key] = origin
            for known in source.origins:
                if known[: len(key)] == key:
                    source.origins[known] = origin


def parse_plugin_text(text: str) -> tuple[str, dict[str, Any]]:
    """Return name and parameters of a plug-in that a command takes as ``gpipe:bulk=4``; the values are YAML."""
    parts = text.split(":")
    name = ":".join(part for part in parts if "=" not in part)
    parameters = dict(part.split("=", 1) for part in parts if "=" in part)
    return name, {key: yaml.load(value, _Loader) for key, value in parameters.items()}


class _Dumper(yaml.SafeDumper):
    """Writes YAML that the loader above reads back as equal values."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write no aliases: repeated values are written in full."""
        return True


# A text is quoted if YAML 1.1 or YAML 1.2 would read it as another type.
_Dumper.yaml_implicit_resolvers = {
    first: [
        *_Loader.yaml_implicit_resolvers.get(first, []),
        *yaml.SafeDumper.yaml_implicit_resolvers.get(first, []),
    ]
    for first in {*_Loader.yaml_implicit_resolvers, *yaml.SafeDumper.yaml_implicit_resolvers}
}


def dump_yaml(data: dict[str, Any]) -> str:
    """Return a tree as YAML that ``read_text`` reads back equal."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)
    return text
