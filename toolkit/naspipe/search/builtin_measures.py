"""The built-in measures: parameters, FLOPs, activation memory and latency."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree  # flattens any nest; torch offers no public one
from torch.utils._python_dispatch import TorchDispatchMode  # what torch's own FLOP counter is made of
from torch.utils.flop_counter import FlopCounterMode

from naspipe.records import Direction
from naspipe.search.measure import Measure, Subnet


class Parameters(Measure):
    """Number of scalar parameters of the subnet."""

    direction: ClassVar[Direction] = "minimize"

    def measure(self, subnet: Subnet) -> int:
        """Count the parameters."""
        return count_parameters(subnet.module)


class Flops(Measure):
    """Floating-point operations of the forward of one sample; a multiplication and an addition count as two."""

    direction: ClassVar[Direction] = "minimize"

    def measure(self, subnet: Subnet) -> int:
        """Count the operations with torch's counter, which counts matrix products and convolutions."""
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            subnet.module(subnet.inputs(1))
        return int(counter.get_total_flops())


class ActivationMemory(Measure):
    """Peak number of bytes of all results of operations that are alive, in the forward of one sample.

    Weights, input, and memory that an operation uses internally are not counted.
    """

    direction: ClassVar[Direction] = "minimize"

    def measure(self, subnet: Subnet) -> int:
        """Watch every storage from the operation that allocates it until it is freed."""
        module, inputs = subnet.module, subnet.inputs(1)
        with torch.no_grad(), _LiveBytes([*module.parameters(), *module.buffers(), *_tensors(inputs)]) as live:
            module(inputs)
        return int(live.peak)


class Latency(Measure):
    """Median time of a forward, in seconds, on the run's device.

    A batch has ``search.latency.batch_size`` samples. The first ``warmup`` forwards are not counted; the median is that
    of the next ``repeats``. The metric ``latency_spread`` is their interquartile range.
    """

    direction: ClassVar[Direction] = "minimize"
    timed: ClassVar[bool] = True

    def measure(self, subnet: Subnet) -> Mapping[str, float]:
        """Time the forwards."""
        settings = subnet.latency
        module, inputs = subnet.module, subnet.inputs(settings.batch_size)
        times = []
        with torch.no_grad():
            for repeat in range(settings.warmup + settings.repeats):
                _wait(subnet.device)
                start = time.perf_counter()
                module(inputs)
                _wait(subnet.device)
                if repeat >= settings.warmup:
                    times.append(time.perf_counter() - start)
        low, median, high = np.quantile(times, (0.25, 0.5, 0.75))
        return {"value": float(median), "spread": float(high - low)}


def count_parameters(module: nn.Module) -> int:
    """Return the number of scalar parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _tensors(nest: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(nest) if isinstance(leaf, Tensor)]


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it so
    """Counts the bytes of storages that operations have allocated and that are still in use.

    Attributes:
        peak: The largest count so far.
    """

    def __init__(self, known: list[Tensor]) -> None:
        """Begin to count; the storages of ``known`` tensors are left out."""
        super().__init__()  # type: ignore[no-untyped-call]  # likewise
        self.peak = 0
        self._alive = 0
        # The object of a storage lives as long as the storage, so freed storages leave this set.
        self._known = weakref.WeakSet[torch.UntypedStorage](tensor.untyped_storage() for tensor in known)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage not in self._known:
                self._known.add(storage)
                size = storage.nbytes()
                self._alive += size
                weakref.finalize(storage, self._free, size)
        self.peak = max(self.peak, self._alive)
        return result

    def _free(self, size: int) -> None:
        self._alive -= size
