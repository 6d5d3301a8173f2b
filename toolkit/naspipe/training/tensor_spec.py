"""BoundarySpecs: the spec of what passes a block boundary, known before it is computed.

A receiver must offer a buffer of the right size ahead of time. The size follows from running the block on the
meta device (under autocast, which that device lacks, on the real one), once for each (block, variant of the
architecture, spec of the input).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree  # flattens any nest; torch offers no public one

from naspipe.errors import TrainingError
from naspipe.space import Architecture
from naspipe.supernet.supernet import Supernet
from naspipe.training.boundary import enter_block

ALIGNMENT = 16
"""Bytes at whose multiples each tensor of a message starts."""

STAMP_BYTES = 8
"""Bytes of a message by which sender and receiver know that they follow one plan."""

MAX_KNOWN = 10_000
"""BoundarySpecs kept; a block whose variants are all its architectures has no end of them."""


@dataclass(frozen=True)
class TensorSpec:
    """A tensor without its values.

    Attributes:
        dtype: Type of its elements.
        shape: Its shape.
        requires_grad: Whether a gradient flows back for it.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    requires_grad: bool

    @property
    def num_bytes(self) -> int:
        """Bytes that it takes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def padded_bytes(self) -> int:
        """Bytes that it takes in a message."""
        return -(-self.num_bytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class PayloadSpec:
    """A payload without the values of its tensors.

    Attributes:
        structure: The nest.
        slots: For every leaf its spec, or the value itself if it is no tensor.
    """

    structure: Any
    slots: tuple[Any, ...]

    @property
    def key(self) -> Hashable:
        """What equal specs share."""
        return str(self.structure), tuple(s if isinstance(s, TensorSpec) else repr(s) for s in self.slots)

    @property
    def tensors(self) -> list[TensorSpec]:
        """The specs of its tensors."""
        return [slot for slot in self.slots if isinstance(slot, TensorSpec)]


def spec_of(payload: Any) -> PayloadSpec:
    """Return the spec of a payload."""
    values, structure = pytree.tree_flatten(payload)
    slots = [
        TensorSpec(value.dtype, tuple(value.shape), value.requires_grad) if isinstance(value, Tensor) else value
        for value in values
    ]
    return PayloadSpec(structure, tuple(slots))


class BoundarySpecs:
    """The specs at the boundaries of a supernet's blocks."""

    def __init__(
        self,
        supernet: Supernet,
        device: str = "cpu",
        surround: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        """Use a supernet, on the meta device if it may.

        Args:
            supernet: In training mode.
            device: Where it would train; its parameters say where it is.
            surround: Makes the context in which each block runs.
        """
        self._blocks = list(supernet)
        is_meta = any(parameter.is_meta for parameter in supernet.parameters())
        self.device = "meta" if is_meta else device
        self._surround = surround
        self._known: dict[Hashable, PayloadSpec] = {}

    def after(self, end_block: int, architecture: Architecture, inputs: PayloadSpec) -> PayloadSpec:
        """Return the spec of what block ``end_block - 1`` returns.

        Args:
            end_block: One more than the last block run; 0 gives the input's.
            architecture: What runs.
            inputs: The spec of the first block's input.

        Raises:
            TrainingError: A block cannot run on the meta device.
        """
        spec = inputs
        for index in range(end_block):
            block = self._blocks[index]
            key = (index, block.variant(architecture), spec.key)
            if key not in self._known:
                if len(self._known) >= MAX_KNOWN:
                    del self._known[next(iter(self._known))]
                self._known[key] = self.run(index, architecture, spec)
            spec = self._known[key]
        return spec

    def run(self, index: int, architecture: Architecture, spec: PayloadSpec) -> PayloadSpec:
        """Return the spec of what one block returns for zeros.

        Args:
            index: The block.
            architecture: What runs.
            spec: That of the block's input.

        Raises:
            TrainingError: The block cannot run on them.
        """
        values = [
            torch.zeros(slot.shape, dtype=slot.dtype, device=self.device).requires_grad_(slot.requires_grad)
            if isinstance(slot, TensorSpec)
            else slot
            for slot in spec.slots
        ]
        block = self._blocks[index]
        try:
            with torch.enable_grad(), torch.random.fork_rng(devices=[]), self._surround():
                payload, _ = enter_block(pytree.tree_unflatten(values, spec.structure))
                return spec_of(block(payload, architecture))
        except Exception as error:
            raise TrainingError(
                f"block {index} ({type(block).__name__}) must run on zeros on the {self.device} device, so that other "
                f"stages know what it sends, but: {type(error).__name__}: {error}. Compute shapes without "
                "values there, or set executor.transport to in-process."
            ) from error


def pack(
    tensors: Sequence[Tensor | None],
    specs: Sequence[TensorSpec],
    stamp: bytes,
    flag: bool = False,
    device: str = "cpu",
) -> Tensor:
    """Return a message: stamp and flag, a byte for each tensor that says whether it is there, the tensors' bytes.

    Args:
        tensors: In the order of ``specs``; None where there is none.
        specs: What the receiver expects.
        stamp: ``STAMP_BYTES`` that the receiver compares.
        flag: One bit more.
        device: Where the message is made.
    """
    present = [tensor is not None for tensor in tensors]
    message = torch.zeros(message_bytes(specs), dtype=torch.uint8, device=device)
    head = torch.tensor([*stamp, flag, *present], dtype=torch.uint8, device=device)
    message[: len(head)] = head
    offset = _head_bytes(specs)
    for tensor, spec in zip(tensors, specs, strict=True):
        if tensor is not None:
            assert (tensor.dtype, tuple(tensor.shape)) == (spec.dtype, spec.shape), (tensor.shape, spec)
            data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            message[offset : offset + spec.num_bytes] = data
        offset += spec.padded_bytes
    return message


def unpack(message: Tensor, specs: Sequence[TensorSpec]) -> tuple[list[Tensor | None], bool, bytes]:
    """Return a message's tensors, as views into it, None where the sender had none; the flag; and the stamp."""
    head = message[: STAMP_BYTES + 1 + len(specs)].tolist()
    stamp, flag, present = bytes(head[:STAMP_BYTES]), bool(head[STAMP_BYTES]), head[STAMP_BYTES + 1 :]
    offset = _head_bytes(specs)
    tensors: list[Tensor | None] = []
    for is_there, spec in zip(present, specs, strict=True):
        data = message[offset : offset + spec.num_bytes]
        tensors.append(data.view(spec.dtype).view(spec.shape) if is_there else None)
        offset += spec.padded_bytes
    return tensors, flag, stamp


def message_bytes(specs: Sequence[TensorSpec]) -> int:
    """Return the size of a message."""
    return _head_bytes(specs) + sum(spec.padded_bytes for spec in specs)


def _head_bytes(specs: Sequence[TensorSpec]) -> int:
    return -(-(STAMP_BYTES + 1 + len(specs)) // ALIGNMENT) * ALIGNMENT
