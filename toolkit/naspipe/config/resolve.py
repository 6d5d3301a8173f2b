"""From a user's YAML to a complete configuration; all faults are reported at once."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from naspipe import registry
from naspipe.config.optimizers import optimizer_parameters, try_optimizer
from naspipe.config.parameters import (
    arguments_of,
    parameters_model,
    parameters_of,
)
from naspipe.config.schema import RunConfig
from naspipe.config.source import OVERRIDE, Key, Source, apply_overrides, path_text, read_file
from naspipe.errors import ConfigError, InputError, NaspipeWarning, PluginError, Problem
from naspipe.usercode import user_traceback
from naspipe.wording import fault_of, listing, nearest


@dataclass(frozen=True)
class PluginSlot:
    """A place in the configuration that names a plug-in.

    Attributes:
        key: Path of the section that has the key ``name``.
        registry: The registry of the plug-in's kind.
        nested: Path of its parameters below the section; empty where they are beside the name.
    """

    key: tuple[str, ...]
    registry: registry.Registry
    nested: tuple[str, ...] = ()


SPACE = PluginSlot(("space",), registry.spaces)
TASK = PluginSlot(("task",), registry.tasks)
SAMPLER = PluginSlot(("sampler",), registry.samplers)
STRATEGY = PluginSlot(("search", "strategy"), registry.strategies)
EXECUTOR = PluginSlot(("executor",), registry.executors, nested=("options",))
SLOTS = (SPACE, TASK, SAMPLER, STRATEGY, EXECUTOR)


def resolve_file(path: str | Path, overrides: Sequence[str] = ()) -> tuple[RunConfig, Source]:
    """Read a YAML file, apply overrides, and return the configuration with all defaults.

    Raises:
        ConfigError: Something is wrong; it lists all faults.
    """
    source = read_file(Path(path))
    executor = source.get(("executor", "name"))
    apply_overrides(source, overrides)
    _drop_options_of_another(source, executor, overrides)
    return resolve(source), source


def _drop_options_of_another(source: Source, before: object, overrides: Sequence[str]) -> None:
    """Drop the options in the file if an override names another executor."""
    after = source.get(("executor", "name"))
    # Overrides of the options, or of the whole section, are for the new executor.
    own = any(override.startswith(("executor.options", "executor=")) for override in overrides)
    if before is None or after == before or own or not source.get(("executor", "options")):
        return
    dropped = source.data["executor"].pop("options")
    warnings.warn(
        f"executor.options of {before!r} are dropped, since executor.name is now {after!r}: {dropped!r}.",
        NaspipeWarning,
        stacklevel=4,
    )


def resolve(source: Source) -> RunConfig:
    """Return the configuration that a source describes, with all defaults.

    Raises:
        ConfigError: Something is wrong; it lists all faults.
    """
    problems = list(source.problems)
    try:
        tree: dict[str, Any] = json.loads(json.dumps(source.data))
    except (TypeError, ValueError) as error:
        message = f"must hold only numbers, texts, booleans, lists and mappings, but: {error}."
        raise ConfigError([*problems, Problem("", message)]) from error
    for key, value in _not_finite(tree, ()):
        _add(problems, key, f"must be a finite number, but got {value}.", source)
    if problems != source.problems:
        raise ConfigError(_in_order(problems, source))
    shape = _validate(RunConfig, tree, (), source, problems)
    resolved: dict[tuple[str, ...], dict[str, Any]] = {}
    for slot in SLOTS:
        given = _section(tree, slot.key)
        if given is not None:
            resolved[slot.key] = _resolve_plugin(slot, given, source, problems)
    for phase in ("training", "retrain"):
        given = _section(tree, (phase, "optimizer"))
        if given is not None:
            resolved[phase, "optimizer"] = _resolve_optimizer(phase, given, source, problems)
    if problems or shape is None:
        raise ConfigError(_in_order(problems, source))
    result = shape.model_dump(mode="json")
    for key, section in resolved.items():
        target = result
        for part in key[:-1]:
            target = target[part]
        # A section with parameters beside its name is replaced as a whole.
        target[key[-1]] = {**target[key[-1]], **section} if key == EXECUTOR.key else section
    search = result["search"]
    search["objectives"] = [absolute_reference(name, source.directory) for name in search["objectives"]]
    search["constraints"] = [_absolute_condition(text, source.directory) for text in search["constraints"]]
    return RunConfig.model_validate_json(json.dumps(result))


def _section(tree: Mapping[str, Any], key: tuple[str, ...]) -> dict[str, Any] | None:
    """Return a plug-in's section as given, or its default; None if it is malformed."""
    section: Any = tree
    model: type[BaseModel] | None = RunConfig
    for depth, part in enumerate(key):
        if not isinstance(section, dict):
            return None
        if part not in section:
            assert model is not None
            default: Any = model.model_fields[part].default
            for rest in key[depth + 1 :]:
                default = getattr(default, rest, None)
            return default.model_dump(mode="json") if isinstance(default, BaseModel) else None
        section = section[part]
        model = _model_below(model, part)
    if not isinstance(section, dict):
        return None
    if key == EXECUTOR.key:
        section = {"name": RunConfig.model_fields["executor"].default.name, **section}
    return section if isinstance(section.get("name"), str) else None


def _resolve_plugin(slot: PluginSlot, given: dict[str, Any], source: Source, problems: list[Problem]) -> dict[str, Any]:
    name = absolute_reference(given["name"], source.directory)
    try:
        cls = slot.registry.get(name)
        parameters = parameters_of(cls)
        if not slot.nested and any(parameter.name == "name" for parameter in parameters):
            raise PluginError(
                f"{slot.registry.kind} {name!r} must not have a parameter called 'name': that is the "
                "key of the plug-in itself."
            )
        model = parameters_model(f"{slot.registry.kind} {given['name']!r}", parameters)
    except PluginError as error:
        _add(problems, (*slot.key, "name"), str(error), source)
        return given
    values: Any = given
    for part in slot.nested:
        values = values.get(part, {})
    if not isinstance(values, dict):
        return given
    if not slot.nested:
        values = {key: value for key, value in values.items() if key != "name"}
    other, left_over = _other_owner(slot, name), _left_over(slot.key, source)
    validated = _validate(
        model,
        values,
        (*slot.key, *slot.nested),
        source,
        problems,
        lambda key: other(key) + left_over(key),
    )
    dumped = {} if validated is None else validated.model_dump(mode="json", by_alias=True)
    for parameter in parameters:
        if parameter.is_reference and parameter.name in dumped:
            dumped[parameter.name] = absolute_reference(dumped[parameter.name], source.directory)
    return {"name": name, **({slot.nested[0]: dumped} if slot.nested else dumped)}


def _other_owner(slot: PluginSlot, name: str) -> Callable[[str], str]:
    """Return a hint for a key that another plug-in of this kind would take."""

    def hint(key: str) -> str:
        for other in slot.registry.names():
            try:
                takes = other != name and any(
                    parameter.name == key for parameter in parameters_of(slot.registry.get(other))
                )
            except PluginError:
                continue  # This plug-in is not used, so its error does not matter here.
            if takes:
                kind = slot.registry.kind
                return f" It is a parameter of {kind} {other!r}, but the {kind} here is {name!r}."
        return ""

    return hint


def _left_over(section: Key, source: Source) -> Callable[[str], str]:
    """Return a function that gives a hint for a key that belonged to the plug-in before an override."""

    def hint(key: str) -> str:
        if not source.is_override((*section, "name")) or source.is_override((*section, key)):
            return ""
        path = path_text(section)
        return f" To change the plug-in, replace the whole section: --set '{path}={{name: ...}}'."

    return hint


def _resolve_optimizer(phase: str, given: dict[str, Any], source: Source, problems: list[Problem]) -> dict[str, Any]:
    key, name = (phase, "optimizer"), given["name"]
    try:
        parameters = optimizer_parameters(name)
    except PluginError as error:
        _add(problems, (*key, "name"), str(error), source)
        return given
    values = {part: value for part, value in given.items() if part != "name"}
    model = parameters_model(f"optimizer {name!r}", parameters)
    validated = _validate(model, values, key, source, problems, _left_over(key, source))
    if validated is None:
        return given
    try:
        try_optimizer(name, arguments_of(validated))
    except Exception as error:
        message = f"torch.optim.{name} refuses its arguments: {error}."
        problems.append(Problem(path_text(key), message, source.origin_of_all(key)))
    return {"name": name, **validated.model_dump(mode="json", by_alias=True)}


def construct(known: registry.Registry, name: str, values: Mapping[str, Any]) -> Any:
    """Construct a plug-in by its name and the parameters of a resolved section.

    Raises:
        InputError: It refuses its parameters.
    """
    return construct_class(known.get(name), f"{known.kind} {name!r}", values)


def construct_class(cls: type, title: str, values: Mapping[str, Any]) -> Any:
    """Construct a plug-in of a class.

    Args:
        cls: The class.
        title: Its kind and name, for messages.
        values: All parameters, resolved.

    Raises:
        InputError: It refuses its parameters.
    """
    arguments = plugin_arguments(cls, values)
    try:
        return cls(**arguments)
    except InputError:
        raise
    except Exception as error:
        # A ValueError says what is wrong. Any other error is a fault of the plug-in, so its traceback is shown.
        trace = "" if isinstance(error, ValueError) else f"\n{user_traceback(error)}"
        raise PluginError(f"{title} refuses its parameters: {type(error).__name__}: {error}{trace}") from error


def plugin_arguments(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a resolved section's parameters as typed keyword arguments of ``cls``."""
    model = parameters_model(cls.__qualname__, parameters_of(cls))
    return arguments_of(model.model_validate_json(json.dumps(values)))


def optimizer_arguments(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a resolved section's parameters as typed keyword arguments of ``torch.optim.NAME``."""
    model = parameters_model(name, optimizer_parameters(name))
    return arguments_of(model.model_validate_json(json.dumps(values)))


def absolute_reference(name: str, directory: Path) -> str:
    """Return a reference to a file with its path made absolute; any other name as it is."""
    if not registry.is_file_reference(name):
        return name
    place, _, attribute = name.rpartition(":")
    return f"{(directory / place).resolve()}:{attribute}"


def _absolute_condition(text: str, directory: Path) -> str:
    """Return a condition with the path of a reference made absolute."""
    name = re.split(r"[<>=]", text, maxsplit=1)[0]
    return f"{absolute_reference(name.strip(), directory)}{text[len(name) :]}"


def _validate(
    model: type[BaseModel],
    values: Mapping[str, Any],
    prefix: Key,
    source: Source,
    problems: list[Problem],
    hint: Callable[[str], str] = lambda key: "",
) -> Any:
    """Return the validated model; None if the values are wrong, with the faults added to ``problems``."""
    try:
        return model.model_validate_json(json.dumps(values))
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            key = _existing(detail["loc"], values, missing=detail["type"] == "missing")
            example = _EXAMPLES.get((*prefix, *key), "")
            _add(problems, (*prefix, *key), _message(model, detail, key, hint, example), source)
        return None


def _existing(location: Key, values: Any, *, missing: bool) -> Key:
    """Return a location without the parts that pydantic adds (the branch of a union)."""
    known: list[str | int] = []
    for part in location:
        if missing and len(known) == len(location) - 1:
            known.append(part)
            break
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            continue
        known.append(part)
    return tuple(known)


_EXAMPLES: Mapping[Key, str] = {
    ("space",): "{name: nasbench201}",
    ("task",): "{name: digits}",
    ("sampler",): "{name: uniform}",
    ("search", "strategy"): "{name: random}",
    ("training", "optimizer"): "{name: SGD, lr: 0.05}",
    ("retrain", "optimizer"): "{name: SGD, lr: 0.05}",
}
"""Correct values of sections, for messages about a section that is a plain value."""


def _message(
    model: type[BaseModel], detail: Mapping[str, Any], key: Key, hint: Callable[[str], str], example: str
) -> str:
    if detail["type"] == "extra_forbidden":
        owner: type[BaseModel] | None = model
        for part in key[:-1]:
            owner = _model_below(owner, part)
        allowed = _keys(owner) if owner is not None else []
        word = str(key[-1])
        return f"unknown key.{nearest(word, allowed)}{hint(word)} Allowed here: {listing(allowed)}."
    return f"{fault_of(detail, example)}."


def _not_finite(value: Any, key: Key) -> Iterator[tuple[Key, float]]:
    if isinstance(value, float) and not math.isfinite(value):
        yield key, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for part, inner in items:
        yield from _not_finite(inner, (*key, part))


def _keys(model: type[BaseModel]) -> list[str]:
    return [str(field.alias or name) for name, field in model.model_fields.items()]


def _model_below(model: type[BaseModel] | None, part: str | int) -> type[BaseModel] | None:
    field = model.model_fields.get(str(part)) if model is not None else None
    annotation = field.annotation if field is not None else None
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return None


def _add(problems: list[Problem], key: Key, message: str, source: Source) -> None:
    problem = Problem(path_text(key), message, source.origin(key))
    if problem not in problems:
        problems.append(problem)


def _in_order(problems: Collection[Problem], source: Source) -> list[Problem]:
    """Return the problems in the order of the lines; those of overrides come last."""

    def place(problem: Problem) -> tuple[int, int]:
        if problem.origin.startswith(OVERRIDE):
            return (1, 0)
        line = problem.origin.rpartition(":")[2]
        return (0, int(line)) if line.isdigit() else (1, 0)

    return sorted(problems, key=place)
