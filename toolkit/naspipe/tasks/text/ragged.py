"""Sequences of different lengths in one tensor, and batches of pairs of them, padded."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from naspipe.tasks.data import Batch
from naspipe.tasks.text.sequence import BEGIN, END, PAD
from naspipe.tasks.text.tokens import Subwords


class Ragged:
    """Sequences of ids, one after the other."""

    def __init__(self, ids: Tensor, ends: Tensor) -> None:
        """Keep them.

        Args:
            ids: (tokens,), int32, of all sequences.
            ends: (sequences,), int64, where each ends.
        """
        self.ids = ids
        self.ends = ends

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> Ragged:
        """Return sequences packed."""
        lengths = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.int64)
        flat = [token for sequence in sequences for token in sequence]
        return cls(torch.tensor(flat, dtype=torch.int32), lengths.cumsum(0))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, place: int) -> Tensor:
        start = int(self.ends[place - 1]) if place else 0
        return self.ids[start : int(self.ends[place])].long()


class PairDataset:
    """Pairs of sequences for a sequence-to-sequence model that is taught by the right answer so far."""

    def __init__(
        self,
        source: Ragged,
        target: Ragged,
        places: Sequence[int],
        max_length: int,
        texts: Sequence[str],
        subwords: Subwords,
    ) -> None:
        """Choose pairs.

        Args:
            source: What is translated.
            target: What it is translated to.
            places: Which pairs belong to this split, in its order.
            max_length: Tokens at most of each sequence of a batch, begin or end included.
            texts: The texts of all targets.
            subwords: Their encoding.
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
        """Return the whole texts of some targets that follow each other, none of them cut off."""
        return [self._texts[place] for place in self._places[start : start + count]]

    def batch(self, indices: Sequence[int], key: int) -> Batch:
        """Return inputs (source, target so far) and targets, each (N, its longest) of int64, padded with 0.

        A source ends with the id of the end. The target so far starts with that of the begin, and lacks
        the last token of the targets; so the logits at place t are of token t.
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
