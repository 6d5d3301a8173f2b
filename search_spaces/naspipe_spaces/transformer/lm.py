"""The space ``transformer_lm``: decoder-only language models."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from naspipe.space import Decision, SearchSpace
from naspipe_spaces.transformer.candidates import Candidate, choose_candidates, require_width
from naspipe_spaces.transformer.ends import OneSequence, SequenceHead, WordEmbedding
from naspipe_spaces.transformer.layers import CandidateBlock, SequenceLayer
from naspipe_spaces.transformer.parameters import Chance, Count, PositiveInt, TwoOrMore


class TransformerLM(SearchSpace):
    """Decoder-only language models: a chain of blocks, each a choice among 24 to 96 causal layers."""

    def __init__(
        self,
        vocabulary: TwoOrMore = 1000,
        blocks: PositiveInt = 6,
        candidates: Count = 24,
        width: PositiveInt = 64,
        max_length: PositiveInt = 256,
        dropout: Chance = 0.1,
    ) -> None:
        """Describe the space.

        Args:
            vocabulary: Number of words, including the padding 0.
            blocks: Number of blocks.
            candidates: Number of candidate layers of a block: 24, 48, 72 or 96.
            width: Channels between blocks, a multiple of 16.
            max_length: Length of the longest sequence.
            dropout: Probability that an element of an embedding, or of a layer's output before the sum, is dropped.

        Raises:
            SpaceError: ``width`` is not a multiple of 16.
        """
        require_width(width)
        self.candidates = choose_candidates(candidates)
        self.vocabulary = vocabulary
        self.width = width
        self.max_length = max_length
        self.dropout = dropout
        options = [candidate.name for candidate in self.candidates]
        super().__init__(Decision(f"block{index}", options) for index in range(blocks))

    def blocks(self) -> Iterator[nn.Module]:
        """Yield embedding, choice blocks and head; words (N, T) in, logits (N, T, vocabulary) out."""
        yield OneSequence(WordEmbedding(self.vocabulary, self.width, self.max_length, self.dropout, "vocabulary"))
        for decision in self.decisions:
            yield CandidateBlock(decision, self.candidates, self._layer)
        yield SequenceHead(self.width, self.vocabulary)

    def _layer(self, candidate: Candidate) -> nn.Module:
        return SequenceLayer(candidate.operator(self.width, causal=True), self.width, self.dropout)
