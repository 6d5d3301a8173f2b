"""First and last blocks, always active: embeddings with positions, and heads.

Shapes: N samples, T positions, D width, V words; images (N, C, H, W) of P patches.

Words get sinusoidal positions. These have no parameters, so they add no always-active layer, and they generalise to
lengths that are rare in training. Patches get learned positions: every image has the same patches, so each position is
trained at every step, and sinusoids would not describe rows and columns.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from naspipe.errors import SpaceError
from naspipe_spaces.transformer.layers import PairPayload, SequencePayload

PAD = 0
"""The id of padding, which fills sequences up to one length."""


class WordEmbedding(nn.Module):
    """Words and their positions as vectors."""

    def __init__(self, vocabulary: int, width: int, max_length: int, dropout: float, parameter: str) -> None:
        """Make the table of embeddings; that of the padding is zero and is not trained.

        Args:
            vocabulary: V, including the padding.
            width: D.
            max_length: Largest T.
            dropout: Probability that an element is dropped, in [0, 1).
            parameter: Name of the space's parameter for ``vocabulary``, for messages.
        """
        super().__init__()
        self.table = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.dropout = nn.Dropout(dropout)
        self.max_length = max_length
        self.parameter = parameter

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return vectors (N, T, D) and mask (N, T) of words (N, T).

        Raises:
            SpaceError: The sequence is too long, or a word is not in the vocabulary.
        """
        self._require(ids)
        x = self.table(ids) + sinusoids(ids.shape[1], self.table.embedding_dim, ids.device)
        return self.dropout(x), ids != PAD

    def _require(self, ids: Any) -> None:
        if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.dtype != torch.int64:
            given = f"{ids.dtype} of shape {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
            raise SpaceError(
                f"words must be a tensor of int64 of shape (samples, positions), but are {given}. "
                "Choose a task whose inputs are words."
            )
        if ids.shape[1] > self.max_length:
            raise SpaceError(
                f"sequences must have at most max_length = {self.max_length} positions, but one has {ids.shape[1]}. "
                f"Set space.max_length to {ids.shape[1]} or more, or let the task truncate them."
            )
        # On a GPU this check would synchronise at every step, and meta tensors have no values.
        if ids.device.type == "cpu" and ids.numel():
            lowest, highest = (int(bound) for bound in ids.aminmax())
            vocabulary = self.table.num_embeddings
            if lowest < 0 or highest >= vocabulary:
                raise SpaceError(
                    f"words must be at least 0 and below {self.parameter} = {vocabulary}, but are from {lowest} to "
                    f"{highest}. Set space.{self.parameter} to the number of the task's words."
                )


class OneSequence(nn.Module):
    """The first block of a language model: (N, T) words to (x, mask)."""

    def __init__(self, words: WordEmbedding) -> None:
        super().__init__()
        self.words = words

    def forward(self, ids: Tensor) -> SequencePayload:
        """Return the payload of the blocks."""
        x, mask = self.words(ids)
        return x, mask


class TwoSequences(nn.Module):
    """The first block of an encoder and decoder: the words of source and target to one payload."""

    def __init__(self, source: WordEmbedding, target: WordEmbedding) -> None:
        super().__init__()
        self.source = source
        self.target = target

    def forward(self, inputs: Any) -> PairPayload:
        """Return the payload of the blocks.

        Args:
            inputs: Source (N, S) and target (N, T).

        Raises:
            SpaceError: They are not a pair.
        """
        if not isinstance(inputs, (tuple, list)) or len(inputs) != 2:
            raise SpaceError(
                "the inputs of an encoder and decoder must be a pair (source, target) of words, but are of type "
                f"{type(inputs).__name__}. Choose a task of translation, or the space transformer_lm."
            )
        return (*self.source(inputs[0]), *self.target(inputs[1]))


class Patches(nn.Module):
    """The first block of a vision transformer: (N, C, H, W) to (x, None) with x of shape (N, P, D).

    Patches are in reading order; the convolutions of the candidates see them as one sequence.
    """

    def __init__(self, channels: int, size: int, patch: int, width: int, dropout: float) -> None:
        super().__init__()
        self.shape = (channels, size, size)
        self.project = nn.Conv2d(channels, width, patch, stride=patch)
        self.positions = nn.Parameter(torch.empty((size // patch) ** 2, width))
        nn.init.normal_(self.positions, std=0.02)
        self.dropout = nn.Dropout(dropout)

    def forward(self, images: Tensor) -> SequencePayload:
        """Return the payload of the blocks.

        Raises:
            SpaceError: The images are of another size.
        """
        if tuple(images.shape[1:]) != self.shape:
            raise SpaceError(
                f"images must have channels, height and width {self.shape}, but have {tuple(images.shape[1:])}. "
                "Set space.input_channels and space.image_size to the task's."
            )
        x = self.project(images).flatten(2).transpose(1, 2) + self.positions
        return self.dropout(x), None


class SequenceHead(nn.Module):
    """The last block of a language model: norm, and logits of every word at every position."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, vocabulary)

    def forward(self, payload: SequencePayload) -> Tensor:
        """Return logits (N, T, V)."""
        logits: Tensor = self.linear(self.norm(payload[0]))
        return logits


class TargetHead(SequenceHead):
    """The last block of an encoder and decoder: norm, and logits of every word at every position of the target."""

    def forward(self, payload: PairPayload) -> Tensor:  # type: ignore[override]  # another payload
        """Return logits (N, T, V)."""
        return super().forward((payload[2], payload[3]))


class ImageHead(nn.Module):
    """The last block of a vision transformer: norm, the mean over patches, and logits of the classes."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, classes)

    def forward(self, payload: SequencePayload) -> Tensor:
        """Return logits (N, classes)."""
        logits: Tensor = self.linear(self.norm(payload[0]).mean(dim=1))
        return logits


def sinusoids(length: int, width: int, device: torch.device) -> Tensor:
    """Return the positions of Vaswani et al. (2017): sines in the first half of the channels, then cosines.

    Returns:
        (length, width), in [-1, 1].
    """
    steps = torch.arange(width // 2, dtype=torch.float32, device=device)
    rates = torch.exp(steps * (-math.log(10_000) / (width // 2)))
    angles = torch.arange(length, dtype=torch.float32, device=device).unsqueeze(1) * rates
    return torch.cat((angles.sin(), angles.cos()), dim=1)
