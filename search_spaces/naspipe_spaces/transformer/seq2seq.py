"""The space ``transformer_seq2seq``: encoders and decoders, for translation.

The presets ``nlp.c0`` to ``nlp.c3`` have the numbers of blocks and candidates of Zhao et al., "NASPipe: High
Performance and Reproducible Pipeline Parallel Supernet Training via Causal Synchronous Parallelism", ASPLOS 2022.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import nn

from naspipe.errors import SpaceError
from naspipe.space import Architecture, ArchitectureGraph, Decision, SearchSpace
from naspipe.wording import listing
from naspipe_spaces.transformer.candidates import Candidate, choose_candidates, require_width
from naspipe_spaces.transformer.ends import TargetHead, TwoSequences, WordEmbedding
from naspipe_spaces.transformer.layers import CandidateBlock, DecoderLayer, EncoderLayer
from naspipe_spaces.transformer.parameters import Chance, Count, PositiveInt, TwoOrMore

Preset = Literal["small", "nlp.c0", "nlp.c1", "nlp.c2", "nlp.c3"]


@dataclass(frozen=True)
class Sizes:
    """The sizes of a preset, by the names of the parameters."""

    encoder_blocks: int
    decoder_blocks: int
    candidates: Count
    width: int


PRESETS: dict[str, Sizes] = {
    "small": Sizes(4, 4, 24, 64),
    "nlp.c0": Sizes(24, 24, 96, 1024),
    "nlp.c1": Sizes(24, 24, 72, 1024),
    "nlp.c2": Sizes(24, 24, 48, 1024),
    "nlp.c3": Sizes(24, 24, 24, 1024),
}


class TransformerSeq2Seq(SearchSpace):
    """Encoders and decoders: two chains of blocks, each a choice among 24 to 96 layers; for translation."""

    def __init__(
        self,
        vocabulary: TwoOrMore = 4000,
        target_vocabulary: TwoOrMore | None = None,
        preset: Preset = "small",
        encoder_blocks: PositiveInt | None = None,
        decoder_blocks: PositiveInt | None = None,
        candidates: Count | None = None,
        width: PositiveInt | None = None,
        cross_heads: PositiveInt = 8,
        max_length: PositiveInt = 256,
        dropout: Chance = 0.1,
    ) -> None:
        """Describe the space.

        Args:
            vocabulary: Number of words of the source, including the padding 0.
            target_vocabulary: Number of words of the target; by default that of the source.
            preset: The defaults of the next four sizes: small, or nlp.c0 to nlp.c3.
            encoder_blocks: Number of blocks of the encoder.
            decoder_blocks: Number of blocks of the decoder.
            candidates: Number of candidate layers of a block: 24, 48, 72 or 96.
            width: Channels between blocks, a multiple of 16.
            cross_heads: Heads of the cross-attention of every candidate of the decoder; a divisor of the width.
            max_length: Length of the longest sequence, of source or target.
            dropout: Probability that an element of an embedding, or of a layer's output before the sum, is dropped.

        Raises:
            SpaceError: A size is not allowed.
        """
        if preset not in PRESETS:
            raise SpaceError(f"preset must be one of {listing(PRESETS)}, but is {preset!r}.")
        sizes = PRESETS[preset]
        self.width = sizes.width if width is None else width
        require_width(self.width)
        if self.width % cross_heads:
            raise SpaceError(
                f"cross_heads must divide the width, but is {cross_heads}, and the width is {self.width}. "
                "Set it to 1, 2, 4, 8 or 16, which divide every width."
            )
        self.candidates = choose_candidates(sizes.candidates if candidates is None else candidates)
        self.vocabulary = vocabulary
        self.target_vocabulary = vocabulary if target_vocabulary is None else target_vocabulary
        self._target_parameter = "vocabulary" if target_vocabulary is None else "target_vocabulary"
        self.cross_heads = cross_heads
        self.max_length = max_length
        self.dropout = dropout
        self.encoder_blocks = sizes.encoder_blocks if encoder_blocks is None else encoder_blocks
        self.decoder_blocks = sizes.decoder_blocks if decoder_blocks is None else decoder_blocks
        options = [candidate.name for candidate in self.candidates]
        names = [f"encoder{index}" for index in range(self.encoder_blocks)]
        names += [f"decoder{index}" for index in range(self.decoder_blocks)]
        super().__init__(Decision(name, options) for name in names)

    def blocks(self) -> Iterator[nn.Module]:
        """Yield embeddings, encoder, decoder and head.

        The input is a pair of words: source (N, S) and target (N, T). The output is logits (N, T, target_vocabulary).
        """
        yield TwoSequences(
            self._words(self.vocabulary, "vocabulary"), self._words(self.target_vocabulary, self._target_parameter)
        )
        for decision in self.decisions[: self.encoder_blocks]:
            yield CandidateBlock(decision, self.candidates, self._encoder_layer)
        for decision in self.decisions[self.encoder_blocks :]:
            yield CandidateBlock(decision, self.candidates, self._decoder_layer)
        yield TargetHead(self.width, self.target_vocabulary)

    def _words(self, vocabulary: int, parameter: str) -> WordEmbedding:
        return WordEmbedding(vocabulary, self.width, self.max_length, self.dropout, parameter)

    def _encoder_layer(self, candidate: Candidate) -> nn.Module:
        return EncoderLayer(candidate.operator(self.width, causal=False), self.width, self.dropout)

    def _decoder_layer(self, candidate: Candidate) -> nn.Module:
        operator = candidate.operator(self.width, causal=True)
        return DecoderLayer(operator, self.width, self.dropout, self.cross_heads)

    def graph(self, architecture: Architecture) -> ArchitectureGraph:
        """Return two chains side by side; their edges are the layers."""
        nodes: list[tuple[str, str, float, float]] = []
        edges: list[tuple[str, str, str]] = []
        for side, count, column in (("encoder", self.encoder_blocks, 0.0), ("decoder", self.decoder_blocks, 1.5)):
            ends = {0: "in", count: "out"}
            for place in range(count + 1):
                nodes.append((f"{side}.{place}", ends.get(place, str(place)), column, -float(place)))
            edges += [
                (f"{side}.{place}", f"{side}.{place + 1}", str(architecture[f"{side}{place}"]))
                for place in range(count)
            ]
        edges.append((f"encoder.{self.encoder_blocks}", "decoder.0", ""))
        titles = (("encoder", 0.1, 0.0), ("decoder", 1.6, 0.0))
        note = "The encoder is at the left; its output goes to the cross-attention of every layer of the decoder."
        return ArchitectureGraph(tuple(nodes), tuple(edges), titles, note)
