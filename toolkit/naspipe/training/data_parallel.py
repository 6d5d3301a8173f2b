"""Who trains a module: one process; ``training/distributed/data_parallel.py`` has several, data-parallel."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from naspipe.keys import derive_key
from naspipe.tasks.data import Batch


class SingleProcess:
    """A process that trains alone; a subclass is one of several that share each batch.

    Attributes:
        rank: Number of this process.
        processes: Number of processes that train together.
    """

    rank = 0
    processes = 1

    @property
    def leads(self) -> bool:
        """Whether this process logs, saves and tests."""
        return self.rank == 0

    def part(self, batch: Batch) -> Batch:
        """Return the samples of a batch that are this process's."""
        return batch

    def key(self, seed: int, *parts: int | str) -> int:
        """Return the key of draws that belong to this process's samples, such as those of dropout."""
        return derive_key(seed, *parts)

    def wrap(self, module: nn.Module, loss_of: Callable[[nn.Module], Tensor]) -> nn.Module:
        """Return what is run in the module's place.

        Args:
            module: What is trained, in training mode.
            loss_of: Gives the loss of this process's part of a batch for a module.
        """
        return module

    def total(self, value: float) -> float:
        """Return the sum of a number over the processes."""
        return value

    def wait_for_leader(self, name: str) -> None:
        """Wait until the process that leads calls this with the same name."""


SINGLE_PROCESS = SingleProcess()
