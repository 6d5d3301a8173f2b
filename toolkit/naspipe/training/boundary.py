"""Block boundaries: each is one autograd node, in every executor alike.

What enters a block is a fresh, contiguous copy of what left the block before, and the gradient that
goes back is contiguous too. A stage boundary is then no different from any other block boundary, so
the number of stages cannot change a bit: neither the order in which aliased slots are summed nor the
strides that kernels choose their algorithm by depend on where the pipeline is cut.
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

    ``contiguous()`` alone keeps odd strides of dimensions of size 1, which kernels choose their algorithm by, and
    which no message carries.
    """
    return tensor.contiguous().reshape(-1).view(tensor.shape)


def enter_block(payload: Any) -> tuple[Any, Slots]:
    """Cut autograd and hand a payload to a block.

    Args:
        payload: What the block before returned, or a batch's input.

    Returns:
        The copy for the block, which it may change in place, and the leaves at which the block's
        backward leaves the gradients of its input.
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
        gradients: One for each output; None where nothing depends on it.
        inputs: The leaves that ``enter_block`` returned.

    Returns:
        The gradient of each input; None where nothing depends on it.
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
    """Return a payload without its graph, for another part; what needs a gradient is still marked so."""

    def detach(value: Any) -> Any:
        return value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value

    return pytree.tree_map(detach, payload)
