"""Data-parallel training: several processes divide every batch among them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import timedelta

import torch
from torch import Tensor, distributed, nn
from torch.distributed.distributed_c10d import Store
from torch.nn.parallel import DistributedDataParallel

from naspipe.keys import derive_key
from naspipe.tasks.data import Batch, split_batch
from naspipe.training.standalone import SingleProcess

PATIENCE = timedelta(days=7)
"""How long processes wait for the leading one, which saves and tests; if that fails, the launcher ends them."""


class DataParallelProcess(SingleProcess):
    """One of several processes, by torch's DistributedDataParallel; all of them make the same calls.

    Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020.
    """

    def __init__(self, rank: int, processes: int, device: str, store: Store) -> None:
        """Describe this process; the process group exists.

        Args:
            rank: Number of this process.
            processes: Number of processes.
            device: ``cpu`` or ``cuda``; with ``cuda`` this process uses the current GPU.
            store: The store of the processes.
        """
        self.rank, self.processes = rank, processes
        self._device, self._store = device, store

    def samples(self, batch: Batch) -> Batch:
        """Return contiguous samples; if they cannot be divided evenly, the first processes get one more."""
        return split_batch(batch, self.processes)[self.rank]

    def key(self, seed: int, *parts: int | str) -> int:
        """Return a key that differs between processes, since their samples differ."""
        return derive_key(seed, *parts, "process", self.rank)

    def wrap(self, module: nn.Module, loss_of: Callable[[nn.Module], Tensor]) -> nn.Module:
        """Return a module that averages its gradients over the processes; the same module if nothing has a gradient.

        A copy shows which parameters get a gradient, because looking for parameters without one in every step takes
        time.
        """
        tried = copy.deepcopy(module)
        loss = loss_of(tried)
        if loss.requires_grad:
            torch.autograd.backward(loss)
        reached = [parameter.grad is not None for parameter in tried.parameters() if parameter.requires_grad]
        some, missed = self._any(any(reached)), self._any(not all(reached))
        if not some:
            return module
        devices = [torch.cuda.current_device()] if self._device == "cuda" else None
        return DistributedDataParallel(module, device_ids=devices, find_unused_parameters=missed)

    def total(self, value: float) -> float:
        """Return the sum, the same in all processes."""
        numbers = torch.tensor([value], dtype=torch.float64, device=self._device)
        distributed.all_reduce(numbers)
        return float(numbers.item())

    def _any(self, flag: bool) -> bool:
        return self.total(float(flag)) > 0

    def wait_for_leader(self, name: str) -> None:
        """Wait by the store, since saving and testing may take longer than the timeout of a message."""
        if self.leads:
            self._store.set(name, "done")
        else:
            self._store.wait([name], PATIENCE)
