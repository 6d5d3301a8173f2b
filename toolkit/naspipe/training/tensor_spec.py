"""Tensor specs: type and shape of what passes a block boundary, known before it is computed; and its messages.

A receiving process must allocate a buffer of the right size ahead of time. The size is found by running the block
once for each (block, variant of the architecture, payload spec of the input): on the meta device, or on the real device
under autocast, which the meta device lacks.
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
"""Each tensor of a message starts at a multiple of this number of bytes."""

STAMP_BYTES = 8
"""Size of the stamp of a message, by which sender and receiver check that they follow one plan."""

MAX_KNOWN = 10_000
"""Largest number of payload specs that are kept; a block may have a variant for each architecture."""


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
        """Size of its elements in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def padded_bytes(self) -> int:
        """Size in a message, in bytes."""
        return -(-self.num_bytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class PayloadSpec:
    """A payload without the values of its tensors.

    Attributes:
        structure: The nest, as torch's pytree describes it.
        slots: For every leaf its tensor spec, or the value itself if it is not a tensor.
    """

    structure: Any
    slots: tuple[Any, ...]

    @property
    def key(self) -> Hashable:
        """A value that is equal for equal specs."""
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
    """The payload specs at the boundaries of a supernet's blocks."""

    def __init__(
        self,
        supernet: Supernet,
        device: str = "cpu",
        surround: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        """Use a supernet.

        Args:
            supernet: In training mode, on the meta device or on ``device``.
            device: The device that trains.
            surround: Returns the context in which each block runs.
        """
        self._blocks = list(supernet)
        is_meta = any(parameter.is_meta for parameter in supernet.parameters())
        self.device = "meta" if is_meta else device
        self._surround = surround
        self._known: dict[Hashable, PayloadSpec] = {}

    def after(self, end_block: int, architecture: Architecture, inputs: PayloadSpec) -> PayloadSpec:
        """Return the payload spec of the output of block ``end_block - 1``.

        Args:
            end_block: Index of the block behind the boundary; 0 returns ``inputs``.
            architecture: The architecture that runs.
            inputs: The payload spec of the first block's input.

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
        """Return the payload spec of one block's output for zeros.

        Args:
            index: Index of the block.
            architecture: The architecture that runs.
            spec: The payload spec of the block's input.

        Raises:
            TrainingError: The block cannot run on zeros.
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
    """Return a message: stamp, flag, a byte for each tensor that says whether it is there, and the tensors' bytes.

    Args:
        tensors: In the order of ``specs``; None where there is no tensor.
        specs: The tensor specs that the receiver expects.
        stamp: ``STAMP_BYTES`` bytes that the receiver compares.
        flag: A bit that goes with the tensors.
        device: Device of the message.
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
