"""Candidate layers as a block runs them: pre-norm and residual, each with its own norms.

If the candidates of a block shared a norm, every subnet would use it, and all subnets would depend on each other.

Payloads: (x, mask) where there is one sequence; (source, source_mask, target, target_mask) where there are two.
Shapes: sequences (N, T, D), masks (N, T), True at real positions, or None where nothing is padded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from torch import Tensor, nn

from naspipe.space import Architecture, Decision, Option
from naspipe.supernet import ChoiceBlock
from naspipe_spaces.transformer.candidates import Candidate
from naspipe_spaces.transformer.operators import CrossAttention, Operator, zero_padding

SequencePayload = tuple[Tensor, Tensor | None]
"""A sequence and its mask."""

PairPayload = tuple[Tensor, Tensor, Tensor, Tensor]
"""Source, its mask, target, its mask."""


class CandidateBlock(ChoiceBlock):
    """A choice of candidates that all return the tensor spec of their input."""

    def __init__(
        self, decision: Decision, candidates: Sequence[Candidate], make: Callable[[Candidate], nn.Module]
    ) -> None:
        """Build the candidates.

        Args:
            decision: The decision, whose options are the names of the candidates.
            candidates: The candidates.
            make: Makes the layer of a candidate, which is called with the payload only.
        """
        layers: dict[Option, nn.Module] = {candidate.name: make(candidate) for candidate in candidates}
        super().__init__(decision, layers)

    def variant(self, architecture: Architecture) -> Hashable:
        """Return one key for all architectures."""
        return None


class Residual(nn.Module):
    """x + dropout(operator(norm(x)))."""

    def __init__(self, operator: Operator, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.operator = operator
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Map (N, T, D) to (N, T, D)."""
        out: Tensor = x + self.dropout(self.operator(zero_padding(self.norm(x), mask), mask))
        return out


class SequenceLayer(nn.Module):
    """A candidate of a language model or a vision transformer, with one sequence."""

    def __init__(self, operator: Operator, width: int, dropout: float) -> None:
        super().__init__()
        self.own = Residual(operator, width, dropout)

    def forward(self, payload: SequencePayload) -> SequencePayload:
        """Change the sequence."""
        x, mask = payload
        return self.own(x, mask), mask


class EncoderLayer(nn.Module):
    """A candidate of an encoder: it changes the source, and passes the target unchanged."""

    def __init__(self, operator: Operator, width: int, dropout: float) -> None:
        super().__init__()
        self.own = Residual(operator, width, dropout)

    def forward(self, payload: PairPayload) -> PairPayload:
        """Change the source."""
        source, source_mask, target, target_mask = payload
        return self.own(source, source_mask), source_mask, target, target_mask


class DecoderLayer(nn.Module):
    """A candidate of a decoder: its operator on the target, then its own cross-attention to the source."""

    def __init__(self, operator: Operator, width: int, dropout: float, cross_heads: int) -> None:
        super().__init__()
        self.own = Residual(operator, width, dropout)
        self.cross_norm = nn.LayerNorm(width)
        # The encoder has no norm at its end, since all subnets would share it.
        self.source_norm = nn.LayerNorm(width)
        self.cross = CrossAttention(width, cross_heads)
        self.dropout = nn.Dropout(dropout)

    def forward(self, payload: PairPayload) -> PairPayload:
        """Change the target."""
        source, source_mask, target, target_mask = payload
        target = self.own(target, target_mask)
        memory = zero_padding(self.source_norm(source), source_mask)
        target = target + self.dropout(self.cross(self.cross_norm(target), memory, source_mask))
        return source, source_mask, target, target_mask
