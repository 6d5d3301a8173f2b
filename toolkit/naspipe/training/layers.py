"""Layers at run time: parameters, the version counter, and one optimizer each.

A layer's version is the number of updates it has seen. A subnet reads a layer once, through tensors
of its own that share the parameters' storage, and keeps them until its update. An update works in
place unless somebody still needs the version before it; then it works on a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from naspipe.errors import TrainingError
from naspipe.supernet.supernet import LayerParameters

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Reading:
    """What one subnet read of a layer.

    Attributes:
        version: The number of updates that the parameters had seen.
        tensors: Autograd leaves, by the parameter's path within the block; their gradients add up over
            the subnet's micro-batches.
    """

    version: int
    tensors: dict[str, Tensor]


class Layer:
    """One unit of weight sharing while the supernet trains."""

    def __init__(
        self,
        parameters: LayerParameters,
        make_optimizer: MakeOptimizer,
        *,
        delay: int | None = None,
        clip_norm: float | None = None,
    ) -> None:
        """Take charge of a layer's parameters.

        Args:
            parameters: What it owns. Nothing else may change them from now on.
            make_optimizer: Makes the layer's optimizer at its first update.
            delay: Of an always-active layer: subnet y reads version max(0, y - delay). None for a strict
                layer, and where the contract governs all layers: a subnet reads the version there is.
            clip_norm: Largest norm of an update's gradient, or None.
        """
        self.spec = parameters
        self.version = 0
        self.optimizer: torch.optim.Optimizer | None = None
        self._make_optimizer = make_optimizer
        self._delay = delay
        self._clip_norm = clip_norm
        self._parameters = list(parameters.parameters.values())
        self.slots = list(parameters.slots)
        self._trained = [p for p in self._parameters if p.requires_grad]
        # The current version, as readers see it: the parameters' storage, with a counter of changes of its own.
        self._current: list[Tensor] = [p.data for p in self._parameters]
        self._readers: dict[int, int] = {}
        self._kept: dict[int, list[Tensor]] = {}
        self._unread: dict[int, int] = {}
        self._pending: dict[int, tuple[list[Tensor | None], float]] = {}
        for path, parameter in parameters.parameters.items():
            if parameter.requires_grad:
                hook = _refuse_gradient(f"parameter {path!r} of {parameters}")
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]  # torch leaves it so

    @property
    def num_versions(self) -> int:
        """Number of versions of the parameters held for later readers, the current one included."""
        return 1 + len(self._kept)

    def read(self, subnet: int) -> Reading:
        """Return the version that a subnet is due, as autograd leaves of its own.

        Call it once per subnet; ``update`` ends the reading.
        """
        if self._delay is None:
            version = self.version
        else:
            version = max(0, subnet - self._delay)
            self._unread[version] = self._reads_left(version) - 1
        if version == self.version:
            tensors = self._current
        elif version in self._kept:
            tensors = self._kept[version]
        else:
            raise AssertionError(f"subnet {subnet} is due version {version} of {self.spec}, which is at {self.version}")
        if version != self.version and not self._unread[version]:
            # The last reader of an older version.
            del self._unread[version], self._kept[version]
        self._readers[version] = self._readers.get(version, 0) + 1
        return Reading(
            version,
            {
                path: tensor.detach().requires_grad_(parameter.requires_grad)
                for (path, parameter), tensor in zip(self.spec.parameters.items(), tensors, strict=True)
            },
        )

    def _reads_left(self, version: int) -> int:
        """Return how many subnets are still to read a version, as far as the delay tells."""
        if self._delay is None:
            return 0
        return self._unread.get(version, self._delay + 1 if version == 0 else 1)

    def update(self, subnet: int, reading: Reading, lr: float, skip: bool = False) -> None:
        """Apply a subnet's gradients: at once, or in subnet order if the layer has a delay.

        Args:
            subnet: The subnet that read.
            reading: What ``read`` returned to it; its tensors hold the gradients.
            lr: Learning rate of this step.
            skip: Make the next version without a change.
        """
        self._readers[reading.version] -= 1
        if not self._readers[reading.version]:
            del self._readers[reading.version]
        gradients = [
            None if skip else tensor.grad
            for tensor, parameter in zip(reading.tensors.values(), self._parameters, strict=True)
            if parameter.requires_grad
        ]
        if self._delay is None:
            self._step(gradients, lr)
            return
        self._pending[subnet] = (gradients, lr)
        while self.version in self._pending:
            self._step(*self._pending.pop(self.version))

    def _step(self, gradients: list[Tensor | None], lr: float) -> None:
        """Make the next version."""
        self._detach_readers()
        self.version += 1
        if all(gradient is None for gradient in gradients):
            return
        if self.optimizer is None:
            self.optimizer = self._make_optimizer(self._trained)
        for parameter, gradient in zip(self._trained, gradients, strict=True):
            parameter.grad = gradient
        if self._clip_norm is not None:
            nn.utils.clip_grad_norm_(self._trained, self._clip_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        # Autograd then refuses to go backward through a version that has been overwritten.
        torch.autograd.graph.increment_version(self._current)
        for parameter in self._trained:
            parameter.grad = None

    def _detach_readers(self) -> None:
        """Leave the current storage to whoever needs it and go on with a copy."""
        unread = self._reads_left(self.version) > 0
        if unread:
            self._kept[self.version] = self._current
        else:
            self._unread.pop(self.version, None)
        if self._trained and (unread or self.version in self._readers):
            for parameter in self._trained:
                # The optimizer and the module keep the same Parameter; readers keep the old storage.
                parameter.data = parameter.data.clone()
            self._current = [parameter.data for parameter in self._parameters]


def _refuse_gradient(name: str) -> Callable[[Tensor], None]:
    """Return a hook for a parameter; it holds no layer, so that a supernet is freed as soon as it is let go."""

    def refuse(parameter: Tensor) -> None:
        # Subnets read through leaves of their own, so only an undeclared use gets here.
        parameter.grad = None
        raise TrainingError(
            f"a block must use only the layers that its used_layers names, but {name} got a gradient from a subnet "
            "that does not name it."
        )

    return refuse
