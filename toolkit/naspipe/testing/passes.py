"""Passes: a forward and backward of a supernet, with or without boundaries, and its outputs and gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree  # as in training.boundary

from naspipe.files import digest_tensors
from naspipe.keys import derive_key
from naspipe.space import Architecture
from naspipe.supernet.determinism import deterministic, seed_generators
from naspipe.supernet.supernet import Supernet
from naspipe.testing.subject import SEED, Subject
from naspipe.training.boundary import backward_block, enter_block, leave_block

SAMPLES = 4
"""Samples of the batch in checks of spaces."""

as_in_training = functools.partial(deterministic, 1, "cpu")
"""Returns the context in which all checks that need torch run."""


@dataclass(frozen=True)
class Pass:
    """The result of a forward and a backward.

    Attributes:
        outputs: The tensors of the last block's output, by their slot.
        gradients: The gradients, by the paths of the parameters that got one.
    """

    outputs: dict[str, Tensor]
    gradients: dict[str, Tensor]

    def difference(self, other: Pass) -> str:
        """Return the first place in which the bits of another pass differ, or an empty text."""
        for what, one, two in (
            ("output", self.outputs, other.outputs),
            ("the gradient of", self.gradients, other.gradients),
        ):
            for name in {**one, **two}:
                if name not in one or name not in two:
                    return f"{what} {name} exists in only one of them"
                if digest_tensors({"": one[name]}) != digest_tensors({"": two[name]}):
                    return f"{what} {name} has other bits"
        return ""


def batch_input(subject: Subject) -> Any:
    """Return the input of a small batch of the space's task."""
    data = subject.loaded[1].train
    return data.batch(list(range(min(SAMPLES, len(data)))), key=0).inputs


def build(subject: Subject) -> Supernet:
    """Return a new supernet in training mode, always with the same weights."""
    return Supernet(subject.make(), SEED).train()


def run_straight(supernet: Supernet, inputs: Any, architecture: Architecture) -> Pass:
    """Run a supernet as one module; each block gets its key as in training."""

    def forward(payload: Any) -> Any:
        for index, block in enumerate(supernet):
            seed_generators(derive_key(SEED, "block", 0, 0, index))
            payload = block(payload, architecture)
        return payload

    return _run(supernet, lambda: _forward_backward(forward, inputs))


def run_module(module: nn.Module, call: Callable[[Any], Any], inputs: Any) -> Pass:
    """Run a module with one key for the whole forward.

    Args:
        module: The module whose gradients are returned.
        call: Runs it on the input of a batch.
        inputs: The input of a batch.
    """

    def forward(payload: Any) -> Any:
        seed_generators(SEED)
        return call(payload)

    return _run(module, lambda: _forward_backward(forward, inputs))


def run_with_boundaries(supernet: Supernet, inputs: Any, architecture: Architecture) -> Pass:
    """Run a supernet with a boundary between all blocks, as in training."""

    def run() -> Any:
        payload, tapes = fresh(inputs), []
        for index, block in enumerate(supernet):
            x, leaves = enter_block(payload)
            seed_generators(derive_key(SEED, "block", 0, 0, index))
            payload = block(x, architecture)
            tapes.append((leaves, leave_block(payload)))
        x, leaves = enter_block(payload)
        value = probe(x)
        tapes.append((leaves, leave_block(value)))
        gradients: Sequence[Tensor | None] = [torch.ones_like(value)]
        for entered, left in reversed(tapes):
            gradients = backward_block(left, gradients, entered)
        return payload

    return _run(supernet, run)


def _forward_backward(forward: Callable[[Any], Any], inputs: Any) -> Any:
    payload = forward(fresh(inputs))
    value = probe(payload)
    if value.requires_grad:
        torch.autograd.backward(value)
    return payload


def _run(module: nn.Module, action: Callable[[], Any]) -> Pass:
    module.zero_grad(set_to_none=True)
    payload = action()
    gradients = {path: p.grad.detach().clone() for path, p in module.named_parameters() if p.grad is not None}
    module.zero_grad(set_to_none=True)
    return Pass({f"slot {i}": leaf.detach().clone() for i, leaf in enumerate(tensors_of(payload))}, gradients)


def fresh(inputs: Any) -> Any:
    """Return a copy of a batch's input, since a block may change it in place."""
    return pytree.tree_map(lambda value: value.clone() if isinstance(value, Tensor) else value, inputs)


def tensors_of(payload: Any) -> list[Tensor]:
    """Return the tensors of a nest."""
    return [leaf for leaf in pytree.tree_leaves(payload) if isinstance(leaf, Tensor)]


def probe(payload: Any) -> Tensor:
    """Return a scalar that depends on every floating-point output, with a different weight for each element."""
    generator = torch.Generator().manual_seed(SEED)
    terms = [
        (leaf * torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype)).sum()
        for leaf in tensors_of(payload)
        if leaf.is_floating_point()
    ]
    return torch.stack(terms).sum() if terms else torch.zeros(())
