"""Data-parallel training: each of several processes takes its samples of every batch."""

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
from naspipe.training.data_parallel import SingleProcess

PATIENCE = timedelta(days=7)
"""How long processes wait for the first one, which saves and tests meanwhile; if it fails, the launcher ends them."""


class DataParallelProcess(SingleProcess):
    """One of several processes, by torch's DistributedDataParallel; all of them make the same calls.

    Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020.
    """

    def __init__(self, rank: int, processes: int, device: str, store: Store) -> None:
        """Remember who this is; the process group exists.

        Args:
            rank: Number of this process.
            processes: How many there are.
            device: ``cpu`` or ``cuda``; then the current GPU is this process's own.
            store: By which the processes find each other.
        """
        self.rank, self.processes = rank, processes
        self._device, self._store = device, store

    def part(self, batch: Batch) -> Batch:
        """Return a contiguous part; the first ones have a sample more where the batch cannot be cut evenly."""
        return split_batch(batch, self.processes)[self.rank]

    def key(self, seed: int, *parts: int | str) -> int:
        """Return another key in each process: its samples are others."""
        return derive_key(seed, *parts, "process", self.rank)

    def wrap(self, module: nn.Module, loss_of: Callable[[nn.Module], Tensor]) -> nn.Module:
        """Return the module with its gradients averaged over the processes; as it is if nothing has a gradient.

        Whether the loss reaches every parameter is tried on a copy: looking for those that it does not reach, in every
        step, costs time.
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
        """Return the sum, which is the same in all processes."""
        numbers = torch.tensor([value], dtype=torch.float64, device=self._device)
        distributed.all_reduce(numbers)
        return float(numbers.item())

    def _any(self, flag: bool) -> bool:
        return self.total(float(flag)) > 0

    def wait_for_leader(self, name: str) -> None:
        """Wait in the store: what the leader does meanwhile may take longer than any message."""
        if self.leads:
            self._store.set(name, "done")
        else:
            self._store.wait([name], PATIENCE)
