"""The candidate layers of a block: 24 operators, with inner widths that make them 48, 72 or 96.

Source of the operators: So et al., "The Evolved Transformer", ICML 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from naspipe.errors import SpaceError
from naspipe_spaces.transformer.operators import (
    Convolution,
    GatedLinearUnit,
    LightweightConvolution,
    Operator,
    SelfAttention,
    SeparableConvolution,
)
from naspipe_spaces.transformer.parameters import Count

COUNTS: tuple[int, ...] = get_args(Count)
"""The possible numbers of candidates of a block."""

MOST_HEADS = 16
"""The largest number of heads of a candidate; it divides the width, and so every inner width."""


@dataclass(frozen=True)
class Candidate:
    """One candidate layer of a block.

    Attributes:
        kind: ``conv``, ``sep_conv``, ``light_conv``, ``attention`` or ``glu``.
        kernel: Kernel size of a convolution; 0 for other kinds.
        heads: Number of heads of attention, or of kernels of a lightweight convolution; 0 for other kinds.
        widening: Ratio of the inner width to the width.
    """

    kind: str
    kernel: int = 0
    heads: int = 0
    widening: int = 1

    @property
    def name(self) -> str:
        """Its option, such as ``light_conv7_h4_w2``."""
        kernel = f"{self.kernel}x1" if self.kind == "conv" else str(self.kernel or "")
        heads = f"_h{self.heads}" if self.heads else ""
        widening = f"_w{self.widening}" if self.widening > 1 else ""
        return f"{self.kind}{kernel}{heads}{widening}"

    def operator(self, width: int, causal: bool) -> Operator:
        """Return a new operator.

        Args:
            width: Channels of input and output.
            causal: Whether each position sees only earlier ones and itself.
        """
        inner = self.widening * width
        match self.kind:
            case "conv":
                return Convolution(width, inner, self.kernel, causal)
            case "sep_conv":
                return SeparableConvolution(width, inner, self.kernel, causal)
            case "light_conv":
                return LightweightConvolution(width, inner, self.kernel, self.heads, causal)
            case "attention":
                return SelfAttention(width, inner, self.heads, causal)
        return GatedLinearUnit(width, inner)


def _operators(widening: int) -> list[Candidate]:
    """Return the 24 operators at one inner width."""
    return [
        *(Candidate("conv", kernel, 0, widening) for kernel in (1, 3, 5)),
        *(Candidate("sep_conv", kernel, 0, widening) for kernel in (3, 5, 7, 9, 11)),
        *(Candidate("light_conv", kernel, heads, widening) for kernel in (3, 5, 7, 15) for heads in (1, 4, 16)),
        *(Candidate("attention", 0, heads, widening) for heads in (4, 8, 16)),
        Candidate("glu", 0, 0, widening),
    ]


CANDIDATES: tuple[Candidate, ...] = tuple(candidate for w in (1, 2, 3, 4) for candidate in _operators(w))
"""All 96 candidates; a block with fewer has the first ones."""


def choose_candidates(count: int) -> Sequence[Candidate]:
    """Return the candidates of a block.

    Raises:
        SpaceError: A block cannot have this number of candidates.
    """
    if count not in COUNTS:
        raise SpaceError(f"candidates must be one of {', '.join(map(str, COUNTS))}, but is {count!r}.")
    return CANDIDATES[:count]


def require_width(width: int) -> None:
    """Raise an error if the heads of some candidate do not divide the width.

    Raises:
        SpaceError: They do not.
    """
    if width < 1 or width % MOST_HEADS:
        below = width // MOST_HEADS * MOST_HEADS
        nearest = f"{below} or {below + MOST_HEADS}" if below > 0 else str(MOST_HEADS)
        raise SpaceError(
            f"width must be a multiple of {MOST_HEADS}, the largest number of heads of a candidate, but is {width}. "
            f"Set it to {nearest}."
        )
