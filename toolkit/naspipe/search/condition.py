"""Conditions: comparisons of a metric with a number, such as ``flops <= 1e6``."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from naspipe.errors import InputError

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_FORM = re.compile(r"([^<>=!]+)(<=|>=|==|<|>)([^<>=!]+)")


@dataclass(frozen=True)
class Condition:
    """A comparison of a metric with a number.

    Attributes:
        metric: Name of the metric.
        comparison: ``<``, ``<=``, ``>``, ``>=`` or ``==``.
        bound: The number.
    """

    metric: str
    comparison: str
    bound: float

    def __str__(self) -> str:
        return f"{self.metric} {self.comparison} {self.bound:g}"

    def holds(self, value: float) -> bool:
        """Tell whether a value satisfies the condition."""
        return _COMPARISONS[self.comparison](value, self.bound)

    def miss(self, value: float) -> float:
        """Return how far a value misses the bound, as a part of the bound; 0 if the condition holds."""
        return 0.0 if self.holds(value) else abs(value - self.bound) / (abs(self.bound) or 1.0)


def parse_condition(text: str) -> Condition:
    """Read a condition.

    Args:
        text: A metric, a comparison and a number, as in ``flops <= 1e6``.

    Raises:
        InputError: It is none.
    """
    match = _FORM.fullmatch(text.strip())
    bound = math.nan
    if match is not None:
        try:
            bound = float(match[3])
        except ValueError:
            match = None
    if match is None or not match[1].strip() or not math.isfinite(bound):
        raise InputError(
            f"a condition must compare a metric with a finite number, by one of {', '.join(sorted(_COMPARISONS))}, as "
            f"in flops<=1e6, but is {text!r}."
        )
    return Condition(match[1].strip(), match[2], bound)
