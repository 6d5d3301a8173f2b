"""Superkernels: one weight of which every option uses a slice, like NNI's mixed operations."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from naspipe_spaces.nni_bridge.choosers import Choices, Chooser, Fix, choices_now


def labels_of(expression: Any) -> tuple[str, ...]:
    """Return the decisions in an expression of NNI."""
    return tuple(dict.fromkeys(symbol.label for symbol in expression.leaf_symbols()))


def evaluate(expression: Any, choices: Choices) -> Any:
    """Return the value of an expression of NNI for given choices."""
    return expression.evaluate({label: choices[label] for label in labels_of(expression)})


class Superkernel(Chooser):
    """A mix-in for NNI's mixed operations: it looks up their arguments in the choices of the current call."""

    mutable_arguments: dict[str, Any]
    init_arguments: dict[str, Any]

    def labels(self) -> tuple[str, ...]:
        """Return the decisions in its arguments."""
        return tuple(dict.fromkeys(label for value in self.mutable_arguments.values() for label in labels_of(value)))

    def arguments(self, choices: Choices) -> dict[str, Any]:
        """Return the arguments of the operation that an architecture uses."""
        return {**self.init_arguments, **{n: evaluate(value, choices) for n, value in self.mutable_arguments.items()}}

    def forward_argument(self, name: str) -> Any:
        """Return one argument for the current call; NNI's forward calls this."""
        if name not in self.mutable_arguments:
            return self.init_arguments[name]
        return evaluate(self.mutable_arguments[name], choices_now())

    def slices(self, choices: Choices) -> dict[str, Tensor]:
        """Return the slices of the parameters that an architecture uses, by name."""
        weights: Mapping[str, Tensor | None] = self.freeze_weight(**self.arguments(choices))  # type: ignore[operator]
        return {name: weight for name, weight in weights.items() if weight is not None}

    def fixed(self, choices: Choices, fix: Fix) -> nn.Module:
        """Return an ordinary operation with a copy of the weights."""
        bound = getattr(self, "bound_type")  # noqa: B009  # NNI's attribute
        with torch.device("meta"):
            module = plain(bound(**self.arguments(choices)))
        own = set(module.state_dict())
        weights = {
            name: weight.detach().clone(memory_format=torch.contiguous_format)
            for name, weight in self.slices(choices).items()
            if name in own
        }
        module.load_state_dict(weights, strict=False, assign=True)
        # The other buffers are running statistics of normalisations, which are reset.
        device = next((weight.device for weight in weights.values()), torch.device("cpu"))
        for owner in module.modules():
            for name, buffer in owner.named_buffers(recurse=False):
                if buffer.is_meta:
                    setattr(owner, name, torch.empty_like(buffer, device=device))
            if isinstance(owner, nn.modules.batchnorm._NormBase):
                owner.reset_running_stats()
        return module


@functools.cache
def superkernel_class(mixed: type) -> Any:
    """Return a subclass of a mixed operation of NNI that looks up its arguments."""
    return type(f"Superkernel{mixed.__name__}", (Superkernel, mixed), {})


def plain(module: nn.Module) -> nn.Module:
    """Return a parametrised module of NNI as the torch module that it wraps, with the same tensors.

    A module that wraps nothing, or has its own forward, is returned unchanged.
    """
    bound = getattr(type(module), "_bound_type", None)
    if bound is None or type(module).forward is not bound.forward:
        return module
    result: nn.Module = bound.__new__(bound)
    kept = {k: v for k, v in vars(module).items() if k not in ("trace_args", "trace_kwargs", "_mutables")}
    result.__dict__.update(kept)
    return result
