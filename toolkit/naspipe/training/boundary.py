"""Block boundaries: each is one autograd node, in every executor alike.

A block's input is a fresh, contiguous copy of the output of the block before, and the gradient that goes back is
contiguous too. So a boundary between stages is like any other block boundary, and the number of stages cannot change a
bit. Two things would otherwise depend on where stages begin: the order in which gradients of aliased slots are summed,
and the strides by which kernels choose their algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree  # flattens any nest; torch offers no public one

Slots = list[Tensor | None]
"""One entry per leaf of a payload's nest; None where no gradient can flow."""


def standard_strides(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor whose strides are those of a new one.

    ``contiguous()`` alone keeps odd strides of dimensions of size 1. Kernels choose their algorithm by strides, and
    messages do not carry them.
    """
    return tensor.contiguous().reshape(-1).view(tensor.shape)


def enter_block(payload: Any) -> tuple[Any, Slots]:
    """Detach a payload from its graph and copy it for a block.

    Args:
        payload: The output of the block before, or a batch's input.

    Returns:
        The copy for the block, which it may change in place, and the autograd leaves that get the gradients of the
        block's input.
    """
    values, structure = pytree.tree_flatten(payload)
    leaves: Slots = []
    copies: list[Any] = []
    for value in values:
        if not isinstance(value, Tensor):
            leaves.append(None)
            copies.append(value)
        elif value.requires_grad:
            leaf = standard_strides(value.detach()).requires_grad_()
            leaves.append(leaf)
            copies.append(leaf.clone(memory_format=torch.contiguous_format))
        else:
            leaves.append(None)
            copies.append(value.detach().clone(memory_format=torch.contiguous_format))
    return pytree.tree_unflatten(copies, structure), leaves


def leave_block(payload: Any) -> Slots:
    """Return the tensors of a block's output at which its backward can start."""
    return [
        value if isinstance(value, Tensor) and value.requires_grad else None for value in pytree.tree_leaves(payload)
    ]


def backward_block(outputs: Slots, gradients: Sequence[Tensor | None], inputs: Slots) -> Slots:
    """Run a block's backward.

    Args:
        outputs: What ``leave_block`` returned.
        gradients: A gradient for each output; None where nothing depends on the output.
        inputs: The leaves that ``enter_block`` returned.

    Returns:
        The gradient of each input; None where nothing depends on the input.
    """
    roots = [
        (output, gradient)
        for output, gradient in zip(outputs, gradients, strict=True)
        if output is not None and gradient is not None
    ]
    if roots:
        torch.autograd.backward([root for root, _ in roots], [gradient for _, gradient in roots])
    return [standard_strides(leaf.grad) if leaf is not None and leaf.grad is not None else None for leaf in inputs]


def detach_payload(payload: Any) -> Any:
    """Return a payload without its graph, for another part; ``requires_grad`` stays."""

    def detach(value: Any) -> Any:
        return value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value

    return pytree.tree_map(detach, payload)
