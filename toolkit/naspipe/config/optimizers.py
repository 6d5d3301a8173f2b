"""Optimizers of torch.optim by name, and the arguments that a configuration may give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from naspipe.config.parameters import Parameter, parameters_of, without_type
from naspipe.errors import PluginError
from naspipe.wording import listing, nearest

UNSUPPORTED = {
    "LBFGS": "it needs the loss again within a step, but each parameter has one gradient",
    "SparseAdam": "it takes sparse gradients only, but those of layers are dense",
}
"""Optimizers that a supernet's layers cannot use, and why."""
# Fused kernels give other bits than the loop and foreach implementations, which are equal. The other two are for CUDA
# graphs and for differentiation through the optimizer.
HIDDEN = ("params", "fused", "capturable", "differentiable")


def optimizer_class(name: str) -> Any:
    """Return a class of torch.optim by its name.

    Raises:
        PluginError: There is no such class, or a supernet's layers cannot use it.
    """
    from torch import optim

    known = sorted(
        name
        for name, value in vars(optim).items()
        if isinstance(value, type)
        and issubclass(value, optim.Optimizer)
        and value is not optim.Optimizer
        and name not in UNSUPPORTED
    )
    if name in UNSUPPORTED:
        raise PluginError(f"optimizer {name!r} is not supported: {UNSUPPORTED[name]}. Supported: {listing(known)}.")
    if name not in known:
        raise PluginError(
            f"there is no optimizer torch.optim.{name}.{nearest(name, known)} Supported: {listing(known)}."
        )
    return getattr(optim, name)


def optimizer_parameters(name: str) -> list[Parameter]:
    """Return the arguments that a configuration may give to an optimizer.

    Raises:
        PluginError: As for ``optimizer_class``.
    """
    import torch

    def adapt(annotation: Any) -> Any:
        return without_type(annotation, torch.Tensor)

    return parameters_of(optimizer_class(name), skip=HIDDEN, adapt=adapt)


def try_optimizer(name: str, arguments: Mapping[str, Any]) -> None:
    """Construct an optimizer once, so that it checks the ranges of its arguments.

    Raises:
        ValueError: It refuses its arguments.
    """
    import torch

    optimizer_class(name)([torch.zeros(1, requires_grad=True)], **arguments)
