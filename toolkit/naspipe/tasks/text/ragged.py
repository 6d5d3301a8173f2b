"""Sequences of different lengths in one tensor, and padded batches of pairs of sequences."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from naspipe.tasks.data import Batch
from naspipe.tasks.text.sequence import BEGIN, END, PAD
from naspipe.tasks.text.tokens import Subwords


class Ragged:
    """Sequences of ids, concatenated."""

    def __init__(self, ids: Tensor, ends: Tensor) -> None:
        """Keep the tensors.

        Args:
            ids: (tokens,), int32: the ids of all sequences.
            ends: (sequences,), int64: the index after the last id of each sequence.
        """
        self.ids = ids
        self.ends = ends

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> Ragged:
        """Concatenate sequences."""
        lengths = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.int64)
        flat = [token for sequence in sequences for token in sequence]
        return cls(torch.tensor(flat, dtype=torch.int32), lengths.cumsum(0))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, place: int) -> Tensor:
        start = int(self.ends[place - 1]) if place else 0
        return self.ids[start : int(self.ends[place])].long()


class PairDataset:
    """Pairs of sequences for a sequence-to-sequence model that is trained by teacher forcing."""

    def __init__(
        self,
        source: Ragged,
        target: Ragged,
        places: Sequence[int],
        max_length: int,
        texts: Sequence[str],
        subwords: Subwords,
    ) -> None:
        """Choose the pairs of a split.

        Args:
            source: The sources of all pairs.
            target: The targets of all pairs.
            places: Indices of the pairs of this split, in its order.
            max_length: Tokens of a sequence in a batch at most, including begin or end.
            texts: The texts of all targets.
            subwords: The encoding of the texts.
        """
        self._source = source
        self._target = target
        self._places = list(places)
        self._max_length = max_length
        self._texts = texts
        self.subwords = subwords

    def __len__(self) -> int:
        return len(self._places)

    def references(self, start: int, count: int) -> list[str]:
        """Return the texts of consecutive targets, in full length."""
        return [self._texts[place] for place in self._places[start : start + count]]

    def batch(self, indices: Sequence[int], key: int) -> Batch:
        """Return inputs (source, target so far) and targets, each (N, longest), int64, padded with 0.

        A source ends with the id of the end. The target so far starts with the id of the begin and lacks the last token
        of the targets. So the logits at position t are for token t.
        """
        begin, end = torch.tensor([BEGIN]), torch.tensor([END])
        sources, shifted, targets = [], [], []
        for index in indices:
            place = self._places[index]
            source = self._source[place][: self._max_length - 1]
            target = self._target[place][: self._max_length - 1]
            sources.append(torch.cat([source, end]))
            shifted.append(torch.cat([begin, target]))
            targets.append(torch.cat([target, end]))
        return Batch((_pad(sources), _pad(shifted)), _pad(targets))


def _pad(sequences: list[Tensor]) -> Tensor:
    return pad_sequence(sequences, batch_first=True, padding_value=PAD)
