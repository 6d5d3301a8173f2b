"""Measure: a number that follows from the architecture alone: a size, a cost, or an entry of a table."""

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


class Subnet:
    """The network of an architecture, by itself, as a measure sees it.

    Attributes:
        space: The search space.
        architecture: An architecture of the space.
        device: The device of the module and of its inputs, ``cpu`` or ``cuda``.
        latency: The settings of timings.
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
        """Take an architecture; nothing is built yet.

        Args:
            space: The search space.
            architecture: An architecture of the space.
            build: Builds its subnet on the device, or None: there is no subnet.
            dataset: The split that gives inputs, or None: there are no inputs.
            device: ``cpu`` or ``cuda``.
            latency: The settings of timings.
        """
        self.space = space
        self.architecture = architecture
        self.device = device
        self.latency = latency
        self._build = build
        self._dataset = dataset

    @cached_property
    def module(self) -> nn.Module:
        """The subnet as an ordinary module in evaluation mode; built when it is first read.

        Raises:
            SearchError: Only the architecture is known.
        """
        if self._build is None:
            raise SearchError(
                "a measure that needs the module cannot be used here, since only the architecture is known."
            )
        return self._build().eval()

    def inputs(self, count: int) -> Any:
        """Return the inputs of the first ``count`` samples of the validation split, or of all if it has fewer.

        Raises:
            SearchError: Only the architecture is known.
        """
        from naspipe.tasks.data import move_batch

        if self._dataset is None:
            raise SearchError("a measure that needs inputs cannot be used here, since only the architecture is known.")
        indices = range(min(count, len(self._dataset)))
        return move_batch(self._dataset.batch(indices, key=0), self.device).inputs


class Measure(ABC):
    """A number of a subnet that needs no evaluation on the task, for objectives and constraints.

    A subnet is measured before its evaluation, always in one process. One object serves a whole search. It must not
    change the module, and must not draw from global generators.

    Attributes:
        direction: ``maximize`` or ``minimize``: whether a larger or a smaller value is better.
        timed: Whether the value depends on the clock. Such values are kept in the run's folder, and a resumed search
            reads them there.
    """

    direction: ClassVar[Direction]
    timed: ClassVar[bool] = False

    @abstractmethod
    def measure(self, subnet: Subnet) -> float | Mapping[str, float]:
        """Return a finite number; or a mapping with this number as ``value``, and further numbers under other names."""


def register_objective(name: str, direction: Direction) -> Callable[[Callable[[Subnet], float]], type[Measure]]:
    """Register a function of a ``Subnet`` as a measure under ``name``; a decorator.

    The decorator replaces the function by a subclass of ``Measure``, so a configuration can also refer to it as
    ``file.py:function``.

    Args:
        name: Its name in configurations.
        direction: ``maximize`` or ``minimize``.
    """

    def decorate(function: Callable[[Subnet], float]) -> type[Measure]:
        return registry.objectives.register(name)(_measure_class(function, direction))

    return decorate


def _measure_class(function: Callable[[Subnet], float], direction: Direction) -> type[Measure]:
    """Return a subclass of ``Measure`` that calls a function."""

    def measure(self: Measure, subnet: Subnet) -> float:
        return function(subnet)

    members = {
        "measure": measure,
        "direction": direction,
        "__doc__": function.__doc__,
        "__module__": function.__module__,
        "__qualname__": function.__qualname__,
    }
    return type(function.__name__, (Measure,), members)


def measure_subnet(name: str, measure: Measure, subnet: Subnet) -> dict[str, int | float]:
    """Return a subnet's value of a measure under its name, and further numbers as ``NAME_FURTHER``.

    Raises:
        SearchError: The measure failed, or returned something that is not a finite number.
    """
    what = f"objective {name!r} of {subnet.space.format(subnet.architecture)}"
    with calling(what, SearchError):
        given = measure.measure(subnet)
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
    """Return a number, a NumPy scalar or a tensor without dimensions as a number of Python; None for other values."""
    if not isinstance(value, (int, float)) and getattr(value, "shape", None) == ():
        value = value.item()  # type: ignore[attr-defined]  # arrays and tensors have it
    if isinstance(value, bool):
        return None
    return int(value) if isinstance(value, int) else float(value) if isinstance(value, float) else None
