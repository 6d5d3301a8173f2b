"""Conditions on metrics, such as ``parameters<1e6``: read from text, and compared with values."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from naspipe.errors import InputError
from naspipe.wording import listing, nearest

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}

# The longer signs come first. The name of a metric may have all characters except these signs.
_CONDITION = re.compile(rf"\s*([^<>=]*[^<>=\s])\s*({'|'.join(COMPARISONS)})\s*(\S+)\s*")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Condition:
    """A comparison of a metric with a number.

    Attributes:
        metric: Name of the metric.
        sign: One of ``COMPARISONS``.
        bound: The number, finite.
    """

    metric: str
    sign: str
    bound: float

    def __str__(self) -> str:
        return f"{self.metric} {self.sign} {self.bound:,.12g}"

    def holds(self, value: float) -> bool:
        """Tell whether a value satisfies the condition."""
        return COMPARISONS[self.sign](value, self.bound)

    def miss(self, value: float) -> float:
        """Return the distance of a value from the bound, relative to the bound (to 1 if that is 0); 0 if it holds."""
        return 0.0 if self.holds(value) else abs(value - self.bound) / (abs(self.bound) or 1.0)


def parse_conditions(texts: Iterable[str], metrics: Iterable[str]) -> list[Condition]:
    """Read conditions; a text may have several, joined by commas or "and".

    Args:
        texts: For example ``["parameters<1e6, accuracy>=0.9"]``.
        metrics: Names of the known metrics.

    Raises:
        InputError: A text is not a condition, or names an unknown metric.
    """
    known = list(metrics)
    return [_parse(part, text, known) for text in texts for part in re.split(r",|\s+and\s+", text)]


def parse_condition(text: str) -> Condition:
    """Read one condition on any metric.

    Raises:
        InputError: The text is not a condition.
    """
    match = _CONDITION.fullmatch(text)
    if match is None or not _NUMBER.fullmatch(match[3]):
        raise InputError(
            f"a condition must compare a metric with a number by {listing(COMPARISONS)}, as in parameters<1e6, but "
            f"got {text.strip()!r}."
        )
    bound = float(match[3])
    if not math.isfinite(bound):
        raise InputError(f"a condition must compare with a finite number, but {match[3]} in {text!r} is too large.")
    return Condition(match[1], match[2], bound)


def _parse(part: str, text: str, known: Sequence[str]) -> Condition:
    try:
        condition = parse_condition(part)
    except InputError as error:
        within = f" It is part of {text!r}: join conditions by a comma or 'and'." if part != text else ""
        raise InputError(f"{error}{within} Write thousands without commas. The metrics are {listing(known)}.") from None
    name = condition.metric
    if name not in known:
        raise InputError(f"there is no metric {name!r}.{nearest(name, known)} The metrics are {listing(known)}.")
    return condition
