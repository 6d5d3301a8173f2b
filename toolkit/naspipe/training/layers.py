"""Layers at run time: parameters, a version counter, and an optimizer for each layer.

A layer's version is the number of its updates so far. A subnet reads a layer once: its snapshot holds tensors that
share the parameters' storage, and the subnet keeps it until its update. An update works in place, unless a subnet
still needs the version before it; then the update works on a copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from naspipe.errors import TrainingError
from naspipe.files import digest_tensors
from naspipe.records import Record
from naspipe.supernet.supernet import LayerParameters

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Snapshot:
    """What one subnet has read of a layer.

    Attributes:
        version: The version of the layer when the subnet read it.
        tensors: Autograd leaves, by the parameter's path within the block. Their gradients add up over the subnet's
            micro-batches.
    """

    version: int
    tensors: dict[str, Tensor]


class LayerFacts(Record):
    """The state of a layer in a checkpoint, without its tensors.

    Attributes:
        version: The number of its updates so far.
        stepped: Whether it has an optimizer; the first update makes one.
        numbers: The numbers in the optimizer's state that are not tensors, by ``PARAMETER/KEY``.
    """

    version: int
    stepped: bool
    numbers: dict[str, float]


class LayerState(NamedTuple):
    """The state of a layer while no subnet is in flight.

    Attributes:
        tensors: Weights, versions kept for later subnets, and the optimizer's state, by ``weights/PATH``,
            ``kept/VERSION/PATH`` and ``optimizer/PARAMETER/KEY``. They share the layer's storage: copy or write them
            at once.
        facts: Version, and everything that is not a tensor.
    """

    tensors: dict[str, Tensor]
    facts: LayerFacts


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
            parameters: The layer's parameters. Nothing else may change them from now on.
            make_optimizer: Makes the layer's optimizer at its first update.
            delay: The delay of an always-active layer: subnet y reads version max(0, y - delay). None for a strict
                layer, and where the contract governs all layers: a subnet reads the current version.
            clip_norm: Largest norm of an update's gradient; None: gradients are not clipped.
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
        # The current version as snapshots share it: the parameters' storage, with a change counter of its own.
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

    def read(self, subnet: int) -> Snapshot:
        """Return a snapshot of the version that a subnet must read.

        Call it once for each subnet; ``update`` takes the snapshot back.
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
        return Snapshot(
            version,
            {
                path: tensor.detach().requires_grad_(parameter.requires_grad)
                for (path, parameter), tensor in zip(self.spec.parameters.items(), tensors, strict=True)
            },
        )

    def _reads_left(self, version: int) -> int:
        """Return how many subnets will still read a version, as far as the delay tells."""
        if self._delay is None:
            return 0
        return self._unread.get(version, self._delay + 1 if version == 0 else 1)

    def update(self, subnet: int, snapshot: Snapshot, lr: float, skip: bool = False) -> None:
        """Apply a subnet's gradients: at once, or in subnet order if the layer has a delay.

        Args:
            subnet: Place of the subnet in the sequence.
            snapshot: What ``read`` returned for it; its tensors hold the gradients.
            lr: Learning rate of this step.
            skip: Advance the version, and change no weight.
        """
        self._readers[snapshot.version] -= 1
        if not self._readers[snapshot.version]:
            del self._readers[snapshot.version]
        gradients = [
            None if skip else tensor.grad
            for tensor, parameter in zip(snapshot.tensors.values(), self._parameters, strict=True)
            if parameter.requires_grad
        ]
        if self._delay is None:
            self._step(gradients, lr)
            return
        self._pending[subnet] = (gradients, lr)
        while self.version in self._pending:
            self._step(*self._pending.pop(self.version))

    @property
    def key(self) -> str:
        """Block and name, as in the keys of checkpoints and digests."""
        return f"{self.spec.block}/{self.spec.name}"

    def digest(self) -> str:
        """Return a digest of weights, optimizer state and version."""
        tensors = {path: parameter.detach() for path, parameter in self.spec.parameters.items()}
        if self.optimizer is not None:
            for number, state in self.optimizer.state_dict()["state"].items():
                for key, value in state.items():
                    if value is not None:
                        tensors[f"optimizer.{number}.{key}"] = torch.as_tensor(value)
        return hashlib.sha256(f"{digest_tensors(tensors)} {self.version}".encode()).hexdigest()

    def state(self) -> LayerState:
        """Return the layer's state; no subnet may be in flight."""
        assert not self._readers, "a layer is saved between subnets"
        assert not self._pending, "a layer is saved between subnets"
        tensors = {f"weights/{path}": p.detach() for path, p in self.spec.parameters.items()}
        for version, kept in self._kept.items():
            # Frozen parameters are the same in every version.
            tensors.update({f"kept/{version}/{path}": tensor for path, tensor in self._trained_of(kept)})
        numbers: dict[str, float] = {}
        if self.optimizer is not None:
            for parameter, state in self.optimizer.state_dict()["state"].items():
                for key, value in state.items():
                    if isinstance(value, Tensor):
                        tensors[f"optimizer/{parameter}/{key}"] = value
                    elif value is not None:
                        numbers[f"{parameter}/{key}"] = value
        return LayerState(
            tensors, LayerFacts(version=self.version, stepped=self.optimizer is not None, numbers=numbers)
        )

    def restore(self, state: LayerState) -> None:
        """Take over the state of another layer; call it before the first ``read``.

        Args:
            state: What ``state`` returned for that layer; its tensors may be on any device.
        """
        facts = state.facts
        self.version = facts.version
        kept: dict[int, dict[str, Tensor]] = {}
        optimizer: dict[int, dict[str, Any]] = {}
        with torch.no_grad():
            for name, tensor in state.tensors.items():
                what, _, rest = name.partition("/")
                if what == "weights":
                    self.spec.parameters[rest].copy_(tensor)
                elif what == "kept":
                    version, _, path = rest.partition("/")
                    kept.setdefault(int(version), {})[path] = tensor.to(self.spec.parameters[path].device)
                else:
                    parameter, _, key = rest.partition("/")
                    optimizer.setdefault(int(parameter), {})[key] = tensor
        for name, number in facts.numbers.items():
            parameter, _, key = name.partition("/")
            optimizer.setdefault(int(parameter), {})[key] = number
        for number, tensors in kept.items():
            current = zip(self.spec.parameters, self._current, strict=True)
            self._kept[number] = [tensors.get(path, tensor) for path, tensor in current]
        if self._delay is not None and 0 < self.version <= self._delay:
            # All subnets up to the delay read version 0, and the subnets trained so far have done so.
            self._unread[0] = self._delay + 1 - self.version
        if facts.stepped:
            self.optimizer = self._make_optimizer(self._trained)
            groups = self.optimizer.state_dict()["param_groups"]
            self.optimizer.load_state_dict({"state": optimizer, "param_groups": groups})

    def _trained_of(self, tensors: list[Tensor]) -> list[tuple[str, Tensor]]:
        return [
            (path, tensor)
            for (path, parameter), tensor in zip(self.spec.parameters.items(), tensors, strict=True)
            if parameter.requires_grad
        ]

    def _step(self, gradients: list[Tensor | None], lr: float) -> None:
        """Apply one update, which makes the next version."""
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
        """Leave the current storage to the subnets that still need it, and continue with a copy."""
        unread = self._reads_left(self.version) > 0
        if unread:
            self._kept[self.version] = self._current
        else:
            self._unread.pop(self.version, None)
        if self._trained and (unread or self.version in self._readers):
            for parameter in self._trained:
                # The optimizer and the module keep the same Parameter; snapshots keep the old storage.
                parameter.data = parameter.data.clone()
            self._current = [parameter.data for parameter in self._parameters]


def _refuse_gradient(name: str) -> Callable[[Tensor], None]:
    """Return a hook for a parameter; it refers to no layer, so that no reference cycle keeps a supernet in memory."""

    def refuse(parameter: Tensor) -> None:
        # Subnets use leaves of their own, so a gradient of the parameter itself comes from an undeclared use.
        parameter.grad = None
        raise TrainingError(
            f"a block must use only the layers that its used_layers names, but {name} got a gradient from a subnet "
            "that does not name it."
        )

    return refuse
