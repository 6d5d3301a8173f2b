"""Conditions on metrics, as in ``parameters<1e6``: how they are written, and by how much a value misses one."""

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

# The longer signs come first; a metric's name may hold anything but these signs.
_CONDITION = re.compile(rf"\s*([^<>=]*[^<>=\s])\s*({'|'.join(COMPARISONS)})\s*(\S+)\s*")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Condition:
    """A metric compared with a number.

    Attributes:
        metric: Its name.
        sign: One of ``COMPARISONS``.
        bound: The number.
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
        """Return how far a value is off, in parts of the bound (of 1 if that is 0); 0 if it satisfies."""
        return 0.0 if self.holds(value) else abs(value - self.bound) / (abs(self.bound) or 1.0)


def parse_conditions(texts: Iterable[str], metrics: Iterable[str]) -> list[Condition]:
    """Read conditions, joined by commas or "and" or given one by one.

    Args:
        texts: As in ``["parameters<1e6, accuracy>=0.9"]``.
        metrics: The metrics there are.

    Raises:
        InputError: A text is no condition, or names an unknown metric; it lists those that are known.
    """
    known = list(metrics)
    return [_parse(part, text, known) for text in texts for part in re.split(r",|\s+and\s+", text)]


def parse_condition(text: str) -> Condition:
    """Read one condition, whatever metric it names.

    Raises:
        InputError: It is none.
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
