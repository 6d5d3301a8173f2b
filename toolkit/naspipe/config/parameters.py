"""The parameters of a plug-in: read from its constructor, validated by a typed model, and documented."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from naspipe.errors import PluginError

REQUIRED = inspect.Parameter.empty


class ReferenceMark:
    """Marks the type of a parameter that refers to a class, as ``file.py:Class`` or ``package.module:Class``."""


Reference = Annotated[str, ReferenceMark()]
"""The type of such a parameter; the path of a file is relative to the folder of the configuration."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a plug-in.

    Attributes:
        name: Its key in a configuration.
        annotation: Its type, with pydantic's constraints if it has any.
        default: Its default, or ``REQUIRED``.
        description: Its text under "Args:" in the docstring of the class or of ``__init__``, on one line.
    """

    name: str
    annotation: Any
    default: Any
    description: str

    @property
    def is_reference(self) -> bool:
        """Whether it is a ``Reference``."""
        return any(isinstance(part, ReferenceMark) for part in get_args(self.annotation))

    @property
    def type_text(self) -> str:
        """The type as text, such as ``int >= 1``."""
        return _type_text(self.annotation)


def parameters_of(
    cls: type,
    *,
    skip: Collection[str] = (),
    adapt: Callable[[Any], Any] = lambda annotation: annotation,
) -> list[Parameter]:
    """Return the parameters of ``cls.__init__`` in order.

    Args:
        cls: A plug-in, or any other class with an annotated ``__init__``.
        skip: Parameters that no configuration may set.
        adapt: Changes each annotation, for types that a configuration cannot express.

    Raises:
        PluginError: It takes ``*args`` or ``**kwargs``, so that its parameters are unknown, or its annotations
            cannot be resolved.
    """
    if cls.__init__ is object.__init__:  # type: ignore[misc]  # only compared, never called
        return []
    try:
        hints = get_type_hints(cls.__init__, include_extras=True)  # type: ignore[misc]  # only read
    except (NameError, TypeError) as error:
        raise PluginError(
            f"the annotations of {cls.__qualname__}.__init__ must be importable where it is defined, but: {error}."
        ) from error
    descriptions = _descriptions(cls)
    parameters = []
    for name, parameter in list(inspect.signature(cls.__init__).parameters.items())[1:]:  # type: ignore[misc]
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise PluginError(
                f"{cls.__qualname__}.__init__ must name its parameters, so that a configuration can be "
                f"checked, but takes {parameter}."
            )
        if name not in skip:
            annotation = adapt(hints.get(name, Any))
            parameters.append(Parameter(name, annotation, parameter.default, descriptions.get(name, "")))
    return parameters


def parameters_model(title: str, parameters: list[Parameter]) -> type[BaseModel]:
    """Return a strict pydantic model of the parameters; unknown keys are errors.

    Raises:
        PluginError: A parameter has a type that no configuration can give.
    """
    # Aliases allow a parameter the name of a method of pydantic's, such as ``copy`` or ``json``.
    fields: dict[str, Any] = {
        f"field_{parameter.name}": (
            parameter.annotation,
            Field(
                default=... if parameter.default is REQUIRED else parameter.default,
                alias=parameter.name,
            ),
        )
        for parameter in parameters
    }
    config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())
    try:
        return create_model(title, __config__=config, **fields)
    except Exception as error:
        raise PluginError(
            f"the parameters of {title} must have types that a configuration can give (numbers, texts, "
            f"booleans, lists, mappings), but: {error}"
        ) from error


def arguments_of(model: BaseModel) -> dict[str, Any]:
    """Return a validated model's values as keyword arguments."""
    return {str(field.alias): getattr(model, name) for name, field in type(model).model_fields.items()}


def without_type(annotation: Any, unwanted: type) -> Any:
    """Return ``annotation`` without the type ``unwanted`` in its unions, at any depth."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        kept = [without_type(argument, unwanted) for argument in arguments if argument is not unwanted]
        return Union[tuple(kept)]  # noqa: UP007  # built at run time
    if origin is tuple:
        return tuple[tuple(without_type(argument, unwanted) for argument in arguments)]  # type: ignore[misc]
    return annotation


def summary_of(cls: type) -> str:
    """Return the first line of a class's own docstring, or an empty text."""
    return (inspect.cleandoc(cls.__dict__.get("__doc__") or "").splitlines() or [""])[0]


def _descriptions(cls: type) -> dict[str, str]:
    """Read the "Args:" sections of the class and of its ``__init__``."""
    found: dict[str, str] = {}
    for text in (cls.__doc__, cls.__init__.__doc__):  # type: ignore[misc]  # only read
        section = re.search(r"^Args:\n((?:[ ]+.*\n?|\n)+)", inspect.cleandoc(text or ""), re.MULTILINE)
        if section is None:
            continue
        body = inspect.cleandoc(section.group(1))
        for entry in re.finditer(r"^(\w+)(?: \([^)]*\))?:((?:.*)(?:\n[ ]+.*)*)", body, re.MULTILINE):
            found[entry.group(1)] = " ".join(entry.group(2).split())
    return found


def _type_text(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Annotated:
        base, *constraints = get_args(annotation)
        bounds = [
            f"{symbol} {getattr(item, name)}"
            for constraint in constraints
            for item in getattr(constraint, "metadata", [constraint])
            for name, symbol in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))
            if hasattr(item, name)
        ]
        return " ".join([_type_text(base), ", ".join(bounds)]).rstrip()
    if origin in (Union, types.UnionType):
        return " | ".join(_type_text(argument) for argument in get_args(annotation))
    if annotation is type(None):
        return "None"
    if isinstance(annotation, type) and origin is None:
        return annotation.__name__
    return str(annotation).replace("typing.", "")
