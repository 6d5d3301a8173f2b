"""Data splits in memory, and their batches by index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree  # flattens any nest; torch offers no public one

from naspipe.errors import InputError, TaskError
from naspipe.keys import derive_key, draw_permutation, keyed_random


@dataclass(frozen=True)
class Batch:
    """Some samples of a split.

    Attributes:
        inputs: The input of the first block: a tensor or a nest of tensors, with the samples along dimension 0.
        targets: The targets of the loss, likewise.
    """

    inputs: Any
    targets: Any


class Dataset(Protocol):
    """One split of a task's data."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def batch(self, indices: Sequence[int], key: int) -> Batch:
        """Return samples by index.

        Args:
            indices: Indices of the samples, each in [0, len).
            key: The seed of all random draws for this batch, such as augmentation.
        """
        ...


class TensorDataset:
    """Samples held in two tensors."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        """Keep the tensors.

        Args:
            inputs: (samples, ...).
            targets: (samples, ...).

        Raises:
            TaskError: The numbers of samples differ.
        """
        if len(inputs) != len(targets):
            raise TaskError(
                f"inputs and targets must have one entry for each sample, but there are {len(inputs)} inputs "
                f"and {len(targets)} targets."
            )
        self.inputs = inputs
        self.targets = targets

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, indices: Sequence[int], key: int) -> Batch:
        """Return samples by index; ``key`` has no effect."""
        places = torch.as_tensor(indices, dtype=torch.long)
        return Batch(self.inputs[places], self.targets[places])


@dataclass(frozen=True)
class Splits:
    """The data of a task: splits for training, for the search, and for the final test."""

    train: Dataset
    validation: Dataset
    test: Dataset

    def sizes(self) -> dict[str, int]:
        """Return the number of samples of each split."""
        return {
            "train": len(self.train),
            "validation": len(self.validation),
            "test": len(self.test),
        }


def split_tensors(inputs: Tensor, targets: Tensor, seed: int, *, validation: float, test: float) -> Splits:
    """Split samples at random into training, validation and test.

    Args:
        inputs: (samples, ...).
        targets: (samples, ...).
        seed: Decides the split of each sample.
        validation: Fraction of the samples for validation, in (0, 1).
        test: Fraction of the samples for the test, in (0, 1).

    Raises:
        TaskError: A split would be empty.
    """
    bounds = split_indices(len(inputs), seed, validation=validation, test=test)
    # Sorted, so that the order of the draws does not matter.
    return Splits(
        **{name: TensorDataset(inputs[sorted(indices)], targets[sorted(indices)]) for name, indices in bounds.items()}
    )


def split_indices(count: int, seed: int, *, validation: float, test: float) -> dict[str, list[int]]:
    """Draw the samples of training, validation and test.

    Args:
        count: Number of samples.
        seed: Decides the split of each sample.
        validation: Fraction of the samples for validation, in (0, 1).
        test: Fraction of the samples for the test, in (0, 1).

    Returns:
        The indices of each split's samples, by the name of the split, in the order in which they were drawn.

    Raises:
        TaskError: A split would be empty.
    """
    order = draw_permutation(keyed_random(seed, "split"), count)
    num_test, num_validation = round(count * test), round(count * validation)
    bounds = {
        "test": order[:num_test],
        "validation": order[num_test : num_test + num_validation],
        "train": order[num_test + num_validation :],
    }
    for name, indices in bounds.items():
        if not indices:
            raise TaskError(
                f"every split must have samples, but {name} has none: of {count} samples, validation "
                f"takes {validation} and test {test}."
            )
    return bounds


class EpochOrder:
    """Batch y of a split as a function of (seed, y): every epoch is a new order of all samples."""

    def __init__(self, dataset: Dataset, batch_size: int, seed: int, purpose: str) -> None:
        """Prepare; nothing is drawn yet.

        Args:
            dataset: The split.
            batch_size: Samples in a batch; the last batch of an epoch may be smaller.
            seed: The run's seed.
            purpose: The use of the batches, a part of the key: another purpose gives other batches.
        """
        self._dataset = dataset
        self._batch_size = batch_size
        self._seed = seed
        self._purpose = purpose
        self._epoch = -1
        self._order: list[int] = []

    @property
    def batches_per_epoch(self) -> int:
        """Number of batches in which every sample occurs once."""
        return -(-len(self._dataset) // self._batch_size)

    def batch(self, index: int) -> Batch:
        """Return batch ``index`` of the run."""
        epoch, place = divmod(index, self.batches_per_epoch)
        if epoch != self._epoch:
            generator = keyed_random(self._seed, self._purpose, "order", epoch)
            self._order = draw_permutation(generator, len(self._dataset))
            self._epoch = epoch
        indices = self._order[place * self._batch_size : (place + 1) * self._batch_size]
        return self._dataset.batch(indices, derive_key(self._seed, self._purpose, "batch", index))


def smallest_batch(samples: int, batch_size: int) -> int:
    """Return the number of samples in the smallest batch of an epoch."""
    return min(samples, samples % batch_size or batch_size)


def require_splittable(samples: int, batch_size: int, count: int, key: str) -> None:
    """Raise an error if the smallest batch cannot be split into so many non-empty pieces.

    Args:
        samples: Samples of the split.
        batch_size: Samples in a batch.
        count: Number of pieces.
        key: The key of this number in the configuration: ``training.microbatches`` or ``retrain.processes``.

    Raises:
        InputError: It has too few samples.
    """
    smallest = smallest_batch(samples, batch_size)
    if smallest < count:
        section, _, name = key.partition(".")
        raise InputError(
            f"{key} must be at most the samples of the smallest batch, but is {count}, and with {samples} samples and "
            f"{section}.batch_size = {batch_size} a batch has {smallest}. Choose fewer {name}, or another batch size."
        )


def move_batch(batch: Batch, device: str) -> Batch:
    """Return a batch with its tensors on a device."""

    def move(value: Any) -> Any:
        return value.to(device) if isinstance(value, Tensor) else value

    return Batch(pytree.tree_map(move, batch.inputs), pytree.tree_map(move, batch.targets))


def split_batch(batch: Batch, count: int) -> list[Batch]:
    """Split a batch into ``count`` micro-batches along dimension 0, as evenly as possible."""
    if count == 1:
        return [batch]
    inputs, targets = _split_nest(batch.inputs, count), _split_nest(batch.targets, count)
    return [Batch(x, y) for x, y in zip(inputs, targets, strict=True)]


def _split_nest(nest: Any, count: int) -> list[Any]:
    values, structure = pytree.tree_flatten(nest)
    pieces = [torch.tensor_split(value, count) if isinstance(value, Tensor) else (value,) * count for value in values]
    return [pytree.tree_unflatten([piece[index] for piece in pieces], structure) for index in range(count)]
