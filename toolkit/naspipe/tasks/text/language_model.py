"""The language-model task: predict the next character or subword of a text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from naspipe.errors import TaskError
from naspipe.tasks.cache import cache_folder, cached, hash_texts
from naspipe.tasks.data import Splits, TensorDataset
from naspipe.tasks.text.extra import import_extra, version_of
from naspipe.tasks.text.sequence import END, SequenceTask
from naspipe.tasks.text.sources import TOPICS, read_text
from naspipe.tasks.text.tokens import Characters, Subwords, learn_subwords

PREPARATION = "1"
"""Version of the encoding of texts; a change makes the cache invalid."""

Fraction = Annotated[float, Field(gt=0, lt=1)]


class LanguageModel(SequenceTask):
    """Prediction of the next token of a text; by default the text is the language reference that comes with Python."""

    def __init__(
        self,
        text: str = TOPICS,
        tokens: Literal["characters", "subwords"] = "characters",
        vocabulary: Annotated[int, Field(ge=8)] = 256,
        length: Annotated[int, Field(ge=1)] = 64,
        validation: Fraction = 0.1,
        test: Fraction = 0.1,
        cache: str | None = None,
    ) -> None:
        """Choose the text and its tokens.

        Args:
            text: pydoc, sword:MODULE, or the path of a text file.
            tokens: characters, or subwords by byte-pair encoding.
            vocabulary: Number of ids at most; rarer characters are unknown. The space needs the same number.
            length: Tokens in a sample.
            validation: Fraction of the text for validation, which the search uses; it comes before the test's.
            test: Fraction of the text for the final test; it is the end of the text.
            cache: Folder for prepared data; by default that of NASPIPE_CACHE or XDG_CACHE_HOME.
        """
        super().__init__(vocabulary)
        self.text = text
        self.tokens = tokens
        self.length = length
        self.validation = validation
        self.test = test
        self.cache = cache

    def load(self, seed: int) -> Splits:
        """Return inputs (N, T) and targets (N, T), which are shifted by one token; the seed has no effect.

        The text is divided into three stretches: training, validation, test. Each is divided into windows of T tokens,
        so every token is a target once. An incomplete window at the end of a stretch is not used.
        """
        folder = cache_folder(self.cache)
        if self.tokens == "subwords":
            import_extra("tokenizers", "byte-pair encoding (tokens=characters does without it)")
        text = read_text(self.text, folder)
        second = round(len(text) * (1 - self.test))
        first = max(0, second - round(len(text) * self.validation))
        stretches = {"train": text[:first], "validation": text[first:second], "test": text[second:]}
        encode = self._characters if self.tokens == "characters" else self._subwords
        return Splits(**{name: self._windows(name, ids) for name, ids in encode(stretches, folder).items()})

    def _windows(self, name: str, ids: Tensor) -> TensorDataset:
        count = (len(ids) - 1) // self.length
        if count < 1:
            raise TaskError(
                f"every split must have samples, but {name} has none: {len(ids)} tokens are less than one sample of "
                f"length = {self.length} and the token after it. Choose a longer text, a smaller length, or other "
                "fractions for validation and test."
            )
        flat, size = ids.long(), count * self.length
        return TensorDataset(flat[:size].view(count, -1), flat[1 : size + 1].view(count, -1))

    def _characters(self, stretches: Mapping[str, str], folder: Path) -> Mapping[str, Tensor]:
        characters = Characters(stretches["train"], self.vocabulary)
        return {name: torch.tensor(characters.encode(text)) for name, text in stretches.items()}

    def _subwords(self, stretches: Mapping[str, str], folder: Path) -> Mapping[str, Tensor]:
        """Return the ids of each stretch: its encoded lines, each followed by the id of the end."""
        from safetensors.torch import load, save

        lines = {name: text.split("\n") for name, text in stretches.items()}

        def make() -> bytes:
            subwords = Subwords(learn_subwords(lines["train"], self.vocabulary))
            tensors = {}
            for name, rows in lines.items():
                ids = [token for row in subwords.encode(rows) for token in (*row, END)]
                # The last line of a stretch is incomplete, so it has no end.
                tensors[name] = torch.tensor(ids[:-1], dtype=torch.int32)
            return save(tensors)

        key = (
            "language model", PREPARATION, version_of("tokenizers"), str(self.vocabulary),
            *(hash_texts([text]) for text in stretches.values()),
        )  # fmt: skip
        tensors = load(cached(folder, "language-model", key, make))
        return {name: tensors[name] for name in stretches}
