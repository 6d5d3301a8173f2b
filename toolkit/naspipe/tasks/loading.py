"""Loading and checking a task's data."""

from __future__ import annotations

import reprlib

from torch import Tensor
from torch.utils import _pytree as pytree  # as in tasks.data

from naspipe.errors import TaskError
from naspipe.tasks.data import Splits
from naspipe.tasks.task import Task
from naspipe.usercode import calling
from naspipe.wording import listing


def load_splits(task: Task, seed: int) -> Splits:
    """Load and check the data of a task.

    Raises:
        TaskError: It cannot be loaded, is not ``Splits``, or has a split without samples.
    """
    name = f"{type(task).__name__}.load"
    with calling(name, TaskError):
        splits: object = task.load(seed)
    if not isinstance(splits, Splits):
        raise TaskError(
            f"{name} must return naspipe.Splits(train, validation, test), but returned {describe_value(splits)}. "
            "naspipe.split_tensors makes them from two tensors."
        )
    with calling(f"{name} must return splits with a length: len() of one", TaskError):
        sizes = splits.sizes()
    for split, size in sizes.items():
        if size == 0:
            raise TaskError(f"every split must have samples, but {split} of {name} has none.")
    return splits


def describe_value(value: object) -> str:
    """Return the shapes of a nest of tensors as text; for any other value, its repr and type."""
    if isinstance(value, Tensor):
        return f"shape {tuple(value.shape)}"
    leaves = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
    if leaves:
        return f"{type(value).__name__} of shapes {listing(str(tuple(leaf.shape)) for leaf in leaves)}"
    return f"{reprlib.repr(value)} of type {type(value).__name__}"
