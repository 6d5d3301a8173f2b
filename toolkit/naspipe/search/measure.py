"""Measure: a number that a subnet has whatever it was trained for; its size, its cost, or its entry in a table."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from naspipe import registry
from naspipe.config.schema import LatencyConfig
from naspipe.errors import SearchError
from naspipe.records import Direction
from naspipe.space import Architecture, SearchSpace
from naspipe.usercode import calling

if TYPE_CHECKING:
    from torch import nn

    from naspipe.tasks.data import Dataset


class Candidate:
    """What a measure looks at.

    Attributes:
        space: The search space.
        architecture: One of it.
        device: Where the module and its inputs are.
        latency: How times are to be taken.
    """

    def __init__(
        self,
        space: SearchSpace,
        architecture: Architecture,
        build: Callable[[], nn.Module] | None = None,
        dataset: Dataset | None = None,
        device: str = "cpu",
        latency: LatencyConfig = LatencyConfig(),  # noqa: B008  # immutable
    ) -> None:
        """Describe a candidate; nothing is built yet.

        Args:
            space: The search space.
            architecture: One of it.
            build: Makes its subnet, on the device.
            dataset: Gives inputs.
            device: ``cpu`` or ``cuda``.
            latency: How times are to be taken.
        """
        self.space = space
        self.architecture = architecture
        self.device = device
        self.latency = latency
        self._build = build
        self._dataset = dataset

    @cached_property
    def module(self) -> nn.Module:
        """The subnet as an ordinary module in evaluation mode; built when first asked for.

        Raises:
            SearchError: Only the architecture is known here.
        """
        if self._build is None:
            raise SearchError(
                "a measure that needs the module cannot be used here, where only architectures are known."
            )
        return self._build().eval()

    def inputs(self, count: int) -> Any:
        """Return the inputs of the first samples of the validation split, as many as there are up to ``count``.

        Raises:
            SearchError: There is no data here.
        """
        from naspipe.tasks.data import move_batch

        if self._dataset is None:
            raise SearchError("a measure that needs inputs cannot be used where only architectures are known.")
        indices = range(min(count, len(self._dataset)))
        return move_batch(self._dataset.batch(indices, key=0), self.device).inputs


class Measure(ABC):
    """An objective, or the subject of a constraint, that needs no data of the task's to be judged by.

    It is taken before a candidate is evaluated, in one process, whatever the number of workers. One object serves a
    whole search; it must leave the module as it is, and draw nothing from global generators.

    Attributes:
        direction: Which way is better.
        timed: Whether it depends on the clock. Then what was measured is kept in the run's folder, and a search that
            is resumed looks it up.
    """

    direction: ClassVar[Direction]
    timed: ClassVar[bool] = False

    @abstractmethod
    def measure(self, candidate: Candidate) -> float | Mapping[str, float]:
        """Return the number, finite; or a mapping that holds it under ``value``, and more under names of its own."""


def register_objective(name: str, direction: Direction) -> Callable[[Callable[[Candidate], float]], type[Measure]]:
    """Register a function of a ``Candidate`` as an objective under ``name``; a decorator.

    The function's name then stands for a ``Measure``, so that a configuration can refer to it as ``file.py:function``.

    Args:
        name: What configurations call it.
        direction: Which way is better, ``maximize`` or ``minimize``.
    """

    def decorate(function: Callable[[Candidate], float]) -> type[Measure]:
        return registry.objectives.register(name)(_measure_class(function, direction))

    return decorate


def _measure_class(function: Callable[[Candidate], float], direction: Direction) -> type[Measure]:
    """Return a function as a class of measures."""

    def measure(self: Measure, candidate: Candidate) -> float:
        return function(candidate)

    members = {
        "measure": measure,
        "direction": direction,
        "__doc__": function.__doc__,
        "__module__": function.__module__,
        "__qualname__": function.__qualname__,
    }
    return type(function.__name__, (Measure,), members)


def measure_candidate(name: str, measure: Measure, candidate: Candidate) -> dict[str, int | float]:
    """Return what a measure gives for a candidate: under its name, and ``NAME_MORE`` for what else it gives.

    Raises:
        SearchError: It failed, or gave no finite number.
    """
    what = f"objective {name!r} of {candidate.space.format(candidate.architecture)}"
    with calling(what, SearchError):
        given = measure.measure(candidate)
    values = given if isinstance(given, Mapping) else {"value": given}
    if "value" not in values:
        raise SearchError(f"{what} must be a number, or a mapping with one under 'value', but is {given!r}.")
    numbers: dict[str, int | float] = {}
    for key, value in values.items():
        number = as_number(value)
        if number is None or not math.isfinite(number):
            raise SearchError(f"{what} must be a finite number, but its {key!r} is {value!r}.")
        numbers[name if key == "value" else f"{name}_{key}"] = number
    return numbers


def as_number(value: object) -> int | float | None:
    """Return a number, a scalar of NumPy or a tensor of no dimensions as Python's own; else None."""
    if not isinstance(value, (int, float)) and getattr(value, "shape", None) == ():
        value = value.item()  # type: ignore[attr-defined]  # whatever has a shape of this kind has it
    if isinstance(value, bool):
        return None
    return int(value) if isinstance(value, int) else float(value) if isinstance(value, float) else None
