"""Layers at run time: parameters, the version counter, and one optimizer each.

A layer's version is the number of updates it has seen. A subnet reads a layer once, through tensors
of its own that share the parameters' storage, and keeps them until its update. An update works in
place unless somebody still needs the version before it; then it works on a copy.
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
    """What one subnet read of a layer.

    Attributes:
        version: The number of updates that the parameters had seen.
        tensors: Autograd leaves, by the parameter's path within the block; their gradients add up over
            the subnet's micro-batches.
    """

    version: int
    tensors: dict[str, Tensor]


class LayerFacts(Record):
    """What a checkpoint says of a layer beside its tensors.

    Attributes:
        version: The number of updates that it has seen.
        stepped: Whether it has an optimizer, which the first update makes.
        numbers: What of the optimizer's state is no tensor, by ``PARAMETER/KEY``.
    """

    version: int
    stepped: bool
    numbers: dict[str, float]


class LayerState(NamedTuple):
    """What a layer is between two subnets.

    Attributes:
        tensors: Weights, versions kept for later subnets, and the optimizer's state, by ``weights/PATH``,
            ``kept/VERSION/PATH`` and ``optimizer/PARAMETER/KEY``. They are the layer's own: copy or write them at once.
        facts: The rest.
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

    def read(self, subnet: int) -> Snapshot:
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
        return Snapshot(
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

    def update(self, subnet: int, reading: Snapshot, lr: float, skip: bool = False) -> None:
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

    @property
    def key(self) -> str:
        """Block and name, as checkpoints and digests spell them."""
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
        """Return what later subnets depend on; no subnet may be in flight."""
        assert not self._readers, "a layer is saved between subnets"
        assert not self._pending, "a layer is saved between subnets"
        tensors = {f"weights/{path}": p.detach() for path, p in self.spec.parameters.items()}
        for version, kept in self._kept.items():
            # What is not trained is the same in every version.
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
        """Go on where another layer was; call it before any read.

        Args:
            state: What ``state`` returned there; its tensors may be anywhere.
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
            # Version 0 is read by all subnets up to the delay, of which these have done so.
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
