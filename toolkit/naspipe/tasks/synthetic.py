"""The synthetic task: random samples of any shape, for benchmarks; a model can learn a little from them.

Shapes: N samples, C channels, H x W pixels, S and T tokens.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from naspipe.errors import NaspipeWarning
from naspipe.keys import derive_key
from naspipe.tasks.classification import ClassificationTask
from naspipe.tasks.data import Batch, Splits, TensorDataset, split_indices, split_tensors
from naspipe.tasks.task import Direction, Task
from naspipe.tasks.text.sequence import BEGIN, NUM_SPECIAL, SequenceTask

PositiveInt = Annotated[int, Field(ge=1)]
Vocabulary = Annotated[int, Field(ge=8)]
Shape = tuple[PositiveInt, PositiveInt, PositiveInt]
Fraction = Annotated[float, Field(gt=0, lt=1)]

_DEFAULTS: Mapping[str, Any] = {
    "shape": (3, 32, 32), "classes": 10,
    "length": 64, "source_length": 32, "target_length": 32, "vocabulary": 1000,
}  # fmt: skip
_PARAMETERS: Mapping[str, Sequence[str]] = {
    "images": ("shape", "classes"),
    "tokens": ("length", "vocabulary"),
    "pairs": ("source_length", "target_length", "vocabulary"),
}
"""The parameters that each kind of sample has."""


class Synthetic(Task):
    """Random images, sequences of tokens, or pairs of sequences; for benchmarks, not for results."""

    def __init__(
        self,
        kind: Literal["images", "tokens", "pairs"] = "images",
        samples: Annotated[int, Field(ge=3)] = 512,
        shape: Shape = _DEFAULTS["shape"],
        classes: Annotated[int, Field(ge=2)] = _DEFAULTS["classes"],
        length: PositiveInt = _DEFAULTS["length"],
        source_length: PositiveInt = _DEFAULTS["source_length"],
        target_length: PositiveInt = _DEFAULTS["target_length"],
        vocabulary: Vocabulary = _DEFAULTS["vocabulary"],
        validation: Fraction = 0.125,
        test: Fraction = 0.125,
    ) -> None:
        """Describe the samples; all of them are kept in memory.

        Args:
            kind: images (a classification), tokens (a language model) or pairs (a translation).
            samples: Number of samples of all splits together.
            shape: Channels, height and width of images.
            classes: Number of classes of images.
            length: Tokens in a sample of tokens.
            source_length: Tokens in the source of a pair.
            target_length: Tokens in the target of a pair.
            vocabulary: Number of token ids, including the special ids 0 to 3, of which only the begin is used.
            validation: Fraction of the samples for validation, which the search uses.
            test: Fraction of the samples for the final test.
        """
        given = {
            "shape": shape, "classes": classes, "length": length,
            "source_length": source_length, "target_length": target_length, "vocabulary": vocabulary,
        }  # fmt: skip
        for name, value in given.items():
            if name not in _PARAMETERS[kind] and value != _DEFAULTS[name]:
                warnings.warn(
                    f"{name} = {value!r} has no effect on synthetic samples of kind {kind!r}, which depend on "
                    f"{', '.join(_PARAMETERS[kind])}.",
                    NaspipeWarning,
                    stacklevel=2,
                )
        sizes = (samples, validation, test)
        self._task: Task
        if kind == "images":
            self._task = _Images(shape, classes, *sizes)
        elif kind == "tokens":
            self._task = _Tokens(length, vocabulary, *sizes)
        else:
            self._task = _Pairs(source_length, target_length, vocabulary, *sizes)

    def load(self, seed: int) -> Splits:
        """Return inputs (N, C, H, W), (N, T) or ((N, S), (N, T)), and targets (N,) or (N, T)."""
        return self._task.load(seed)

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """Return the summed cross-entropy, in nats."""
        return self._task.loss(outputs, targets)

    def weight(self, targets: Any) -> float:
        """Return the number of images, or of tokens."""
        return self._task.weight(targets)

    def measure(self, outputs: Any, targets: Any) -> Mapping[str, float]:
        """Return the sums that the metrics need."""
        return self._task.measure(outputs, targets)

    def metrics(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        """Return accuracy and loss, and for tokens the perplexity."""
        return self._task.metrics(totals)

    @property
    def directions(self) -> Mapping[str, Direction]:
        """Accuracy is better when larger, loss and perplexity when smaller."""
        return self._task.directions


class _Images(ClassificationTask):
    """Noise, plus one pattern for each class."""

    def __init__(self, shape: Shape, classes: int, samples: int, validation: float, test: float) -> None:
        self._shape, self._classes = shape, classes
        self._samples, self._validation, self._test = samples, validation, test

    def load(self, seed: int) -> Splits:
        generator = _generator(seed)
        patterns = torch.randn(self._classes, *self._shape, generator=generator)
        targets = torch.randint(self._classes, (self._samples,), generator=generator)
        inputs = torch.randn(self._samples, *self._shape, generator=generator)
        # The pattern is three times as strong as the noise in the direction of the pattern.
        inputs += 3 / math.sqrt(math.prod(self._shape)) * patterns[targets]
        return split_tensors(inputs, targets, seed, validation=self._validation, test=self._test)


class _Tokens(SequenceTask):
    """Chains in which, on average, every second token follows from the token before it."""

    def __init__(self, length: int, vocabulary: int, samples: int, validation: float, test: float) -> None:
        super().__init__(vocabulary)
        self._length = length
        self._samples, self._validation, self._test = samples, validation, test

    def load(self, seed: int) -> Splits:
        generator = _generator(seed)
        tokens = _draw_tokens((self._samples, self._length + 1), self.vocabulary, generator)
        successor = _draw_mapping(self.vocabulary, generator)
        follows = torch.rand(tokens.shape, generator=generator) < 0.5
        for place in range(1, tokens.shape[1]):
            tokens[:, place] = torch.where(follows[:, place], successor[tokens[:, place - 1]], tokens[:, place])
        # Copied, so that a split's inputs and targets are tensors of their own.
        inputs, targets = tokens[:, :-1].clone(), tokens[:, 1:].clone()
        return split_tensors(inputs, targets, seed, validation=self._validation, test=self._test)


class _Pairs(SequenceTask):
    """Sources, and targets in which another token replaces each token of the source."""

    def __init__(
        self, source_length: int, target_length: int, vocabulary: int, samples: int, validation: float, test: float
    ) -> None:
        super().__init__(vocabulary)
        self._lengths = source_length, target_length
        self._samples, self._validation, self._test = samples, validation, test

    def load(self, seed: int) -> Splits:
        generator = _generator(seed)
        source_length, target_length = self._lengths
        source = _draw_tokens((self._samples, source_length), self.vocabulary, generator)
        targets = _draw_mapping(self.vocabulary, generator)[source[:, torch.arange(target_length) % source_length]]
        so_far = torch.cat([torch.full((self._samples, 1), BEGIN), targets[:, :-1]], dim=1)
        places = split_indices(self._samples, seed, validation=self._validation, test=self._test)
        return Splits(
            **{name: _PairTensors(source[rows], so_far[rows], targets[rows]) for name, rows in places.items()}
        )


class _PairTensors:
    """Pairs of fixed lengths: inputs ((N, S), (N, T)) and targets (N, T)."""

    def __init__(self, source: Tensor, so_far: Tensor, targets: Tensor) -> None:
        self._source = source
        self._rest = TensorDataset(so_far, targets)

    def __len__(self) -> int:
        return len(self._rest)

    def batch(self, indices: Sequence[int], key: int) -> Batch:
        """Return samples by index; ``key`` has no effect."""
        rest = self._rest.batch(indices, key)
        return Batch((self._source[torch.as_tensor(indices, dtype=torch.long)], rest.inputs), rest.targets)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(derive_key(seed, "synthetic"))


def _draw_tokens(shape: tuple[int, int], vocabulary: int, generator: torch.Generator) -> Tensor:
    """Draw ids of ordinary tokens; small ids are more frequent, as in a text."""
    skewed = torch.rand(shape, generator=generator) ** 3
    return NUM_SPECIAL + (skewed * (vocabulary - NUM_SPECIAL)).long()


def _draw_mapping(vocabulary: int, generator: torch.Generator) -> Tensor:
    """Draw a one-to-one map of the ids, (V,), which keeps the special ids."""
    rest = NUM_SPECIAL + torch.randperm(vocabulary - NUM_SPECIAL, generator=generator)
    return torch.cat([torch.arange(NUM_SPECIAL), rest])
