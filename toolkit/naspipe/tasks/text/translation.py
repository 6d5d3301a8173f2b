"""The translation task: two texts, aligned by verse or by line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import nn

from naspipe.tasks.cache import cache_folder, cached, hash_texts
from naspipe.tasks.data import Batch, Splits, split_indices
from naspipe.tasks.task import Direction
from naspipe.tasks.text.bleu import corpus_bleu, count_matches, decode_greedily
from naspipe.tasks.text.extra import import_extra, version_of
from naspipe.tasks.text.ragged import PairDataset, Ragged
from naspipe.tasks.text.sequence import SequenceTask
from naspipe.tasks.text.sources import ENGLISH, SPANISH, read_pairs
from naspipe.tasks.text.tokens import Subwords, learn_subwords

PREPARATION = "1"
"""Version of the encoding of pairs; a change makes the cache invalid."""

Fraction = Annotated[float, Field(gt=0, lt=1)]


class Translation(SequenceTask):
    """Translation with one byte-pair encoding for both sides; by default English to Spanish, from two Bibles."""

    def __init__(
        self,
        source: str = ENGLISH,
        target: str = SPANISH,
        vocabulary: Annotated[int, Field(ge=8)] = 4000,
        max_length: Annotated[int, Field(ge=2)] = 96,
        validation: Fraction = 0.05,
        test: Fraction = 0.05,
        label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.1,
        bleu_sentences: Annotated[int, Field(ge=0)] = 32,
        cache: str | None = None,
    ) -> None:
        """Choose texts, tokens and splits.

        Args:
            source: The text to translate: sword:MODULE, or the path of a text file.
            target: Its translation: sword:MODULE, or a text file with as many lines.
            vocabulary: Number of ids of both languages together at most; the space needs the same number.
            max_length: Tokens of a sentence at most; longer ones are truncated.
            validation: Fraction of the pairs for validation, which the search uses.
            test: Fraction of the pairs for the final test.
            label_smoothing: Probability that the loss distributes over all ids.
            bleu_sentences: Sentences of a split that are translated for BLEU, which is slow; 0: no BLEU.
            cache: Folder for prepared data; by default that of NASPIPE_CACHE or XDG_CACHE_HOME.
        """
        super().__init__(vocabulary, label_smoothing)
        self.source = source
        self.target = target
        self.max_length = max_length
        self.validation = validation
        self.test = test
        self.bleu_sentences = bleu_sentences
        self.cache = cache

    def load(self, seed: int) -> Splits:
        """Return inputs (source (N, S), target so far (N, T)) and targets (N, T), ids padded with 0.

        Validation and test are in random order, so that their first sentences are a random sample for BLEU.
        """
        if self.bleu_sentences:
            import_extra("sacrebleu", "BLEU (set bleu_sentences=0 to do without it)")
        import_extra("tokenizers", "byte-pair encoding")
        folder = cache_folder(self.cache)
        pairs = read_pairs(self.source, self.target, folder)
        places = split_indices(len(pairs), seed, validation=self.validation, test=self.test)
        subwords, source, target = self._prepare(pairs, sorted(places["train"]), folder)
        texts = [pair[1] for pair in pairs]
        return Splits(
            **{
                name: PairDataset(source, target, order, self.max_length, texts, subwords)
                for name, order in places.items()
            }
        )

    def measure_module(self, module: nn.Module, batch: Batch, dataset: Any, start: int) -> Mapping[str, float]:
        """Translate the first ``bleu_sentences`` of the split, as far as they are in this batch, and count matches.

        The module gets only the source, truncated to ``max_length``. Its translation is compared with the full text.
        """
        count = min(len(batch.targets), self.bleu_sentences - start)
        if count <= 0:
            return {}
        written = decode_greedily(module, batch.inputs[0][:count], self.max_length)
        return count_matches([dataset.subwords.decode(ids) for ids in written], dataset.references(start, count))

    def metrics(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        """Return the metrics of sequences, and BLEU in [0, 100] of the translated sentences."""
        bleu = corpus_bleu(totals)
        return {**super().metrics(totals), **({} if bleu is None else {"bleu": bleu})}

    @property
    def directions(self) -> Mapping[str, Direction]:
        """BLEU is better when larger; the other metrics are those of sequences."""
        return {**super().directions, **({"bleu": "maximize"} if self.bleu_sentences else {})}

    def _prepare(
        self, pairs: Sequence[tuple[str, str]], train: Sequence[int], folder: Path
    ) -> tuple[Subwords, Ragged, Ragged]:
        """Return the encoding learnt from the training pairs, and all pairs encoded."""
        from safetensors.torch import load, save

        sources, targets = [pair[0] for pair in pairs], [pair[1] for pair in pairs]

        def make() -> bytes:
            learnt = learn_subwords([text for place in train for text in pairs[place]], self.vocabulary)
            subwords = Subwords(learnt)
            tensors = {"subwords": torch.frombuffer(bytearray(learnt.encode("utf-8")), dtype=torch.uint8)}
            for name, texts in (("source", sources), ("target", targets)):
                ragged = Ragged.of(subwords.encode(texts))
                tensors |= {f"{name}.ids": ragged.ids, f"{name}.ends": ragged.ends}
            return save(tensors)

        key = (
            "translation", PREPARATION, version_of("tokenizers"), str(self.vocabulary),
            hash_texts(sources), hash_texts(targets), hash_texts([str(place) for place in train]),
        )  # fmt: skip
        tensors = load(cached(folder, "translation", key, make))
        subwords = Subwords(tensors["subwords"].numpy().tobytes().decode("utf-8"))
        source, target = (Ragged(tensors[f"{name}.ids"], tensors[f"{name}.ends"]) for name in ("source", "target"))
        return subwords, source, target
