"""Signatures: the form of what passes a block boundary, known before it is computed.

A receiver must offer a buffer of the right size ahead of time. The size follows from running the block on the
meta device (under autocast, which that device lacks, on the real one), once for each (block, variant of the
architecture, form of the input).
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
"""Signatures kept; a block whose variants are all its architectures has no end of them."""


@dataclass(frozen=True)
class TensorForm:
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
class Signature:
    """A payload without the values of its tensors.

    Attributes:
        structure: The nest.
        slots: For every leaf its form, or the value itself if it is no tensor.
    """

    structure: Any
    slots: tuple[Any, ...]

    @property
    def key(self) -> Hashable:
        """What equal signatures share."""
        return str(self.structure), tuple(s if isinstance(s, TensorForm) else repr(s) for s in self.slots)

    @property
    def forms(self) -> list[TensorForm]:
        """The forms of its tensors."""
        return [slot for slot in self.slots if isinstance(slot, TensorForm)]


def signature_of(payload: Any) -> Signature:
    """Return the signature of a payload."""
    values, structure = pytree.tree_flatten(payload)
    slots = [
        TensorForm(value.dtype, tuple(value.shape), value.requires_grad) if isinstance(value, Tensor) else value
        for value in values
    ]
    return Signature(structure, tuple(slots))


class Signatures:
    """The signatures at the boundaries of a supernet's blocks."""

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
        self._known: dict[Hashable, Signature] = {}

    def after(self, end_block: int, architecture: Architecture, inputs: Signature) -> Signature:
        """Return the signature of what block ``end_block - 1`` returns.

        Args:
            end_block: One more than the last block run; 0 gives the input's.
            architecture: What runs.
            inputs: The signature of the first block's input.

        Raises:
            TrainingError: A block cannot run on the meta device.
        """
        signature = inputs
        for index in range(end_block):
            block = self._blocks[index]
            key = (index, block.variant(architecture), signature.key)
            if key not in self._known:
                if len(self._known) >= MAX_KNOWN:
                    del self._known[next(iter(self._known))]
                self._known[key] = self.run(index, architecture, signature)
            signature = self._known[key]
        return signature

    def run(self, index: int, architecture: Architecture, signature: Signature) -> Signature:
        """Return the signature of what one block returns for zeros.

        Args:
            index: The block.
            architecture: What runs.
            signature: That of the block's input.

        Raises:
            TrainingError: The block cannot run on them.
        """
        values = [
            torch.zeros(slot.shape, dtype=slot.dtype, device=self.device).requires_grad_(slot.requires_grad)
            if isinstance(slot, TensorForm)
            else slot
            for slot in signature.slots
        ]
        block = self._blocks[index]
        try:
            with torch.enable_grad(), torch.random.fork_rng(devices=[]), self._surround():
                payload, _ = enter_block(pytree.tree_unflatten(values, signature.structure))
                return signature_of(block(payload, architecture))
        except Exception as error:
            raise TrainingError(
                f"block {index} ({type(block).__name__}) must run on zeros on the {self.device} device, so that other "
                f"stages know what it sends, but: {type(error).__name__}: {error}. Compute shapes without "
                "values there, or set executor.transport to in-process."
            ) from error


def pack(
    tensors: Sequence[Tensor | None],
    forms: Sequence[TensorForm],
    stamp: bytes,
    flag: bool = False,
    device: str = "cpu",
) -> Tensor:
    """Return a message: stamp and flag, a byte for each tensor that says whether it is there, the tensors' bytes.

    Args:
        tensors: In the order of ``forms``; None where there is none.
        forms: What the receiver expects.
        stamp: ``STAMP_BYTES`` that the receiver compares.
        flag: One bit more.
        device: Where the message is made.
    """
    present = [tensor is not None for tensor in tensors]
    message = torch.zeros(message_bytes(forms), dtype=torch.uint8, device=device)
    head = torch.tensor([*stamp, flag, *present], dtype=torch.uint8, device=device)
    message[: len(head)] = head
    offset = _head_bytes(forms)
    for tensor, form in zip(tensors, forms, strict=True):
        if tensor is not None:
            assert (tensor.dtype, tuple(tensor.shape)) == (form.dtype, form.shape), (tensor.shape, form)
            data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            message[offset : offset + form.num_bytes] = data
        offset += form.padded_bytes
    return message


def unpack(message: Tensor, forms: Sequence[TensorForm]) -> tuple[list[Tensor | None], bool, bytes]:
    """Return a message's tensors, as views into it, None where the sender had none; the flag; and the stamp."""
    head = message[: STAMP_BYTES + 1 + len(forms)].tolist()
    stamp, flag, present = bytes(head[:STAMP_BYTES]), bool(head[STAMP_BYTES]), head[STAMP_BYTES + 1 :]
    offset = _head_bytes(forms)
    tensors: list[Tensor | None] = []
    for is_there, form in zip(present, forms, strict=True):
        data = message[offset : offset + form.num_bytes]
        tensors.append(data.view(form.dtype).view(form.shape) if is_there else None)
        offset += form.padded_bytes
    return tensors, flag, stamp


def message_bytes(forms: Sequence[TensorForm]) -> int:
    """Return the size of a message."""
    return _head_bytes(forms) + sum(form.padded_bytes for form in forms)


def _head_bytes(forms: Sequence[TensorForm]) -> int:
    return -(-(STAMP_BYTES + 1 + len(forms)) // ALIGNMENT) * ALIGNMENT
