"""Normalisation statistics: none while the supernet trains, calibrated before a subnet is used.

Running statistics that all subnets write would make results depend on their order, and mix the
statistics of different subnets. (Calibration after Yu and Huang, "Universally Slimmable Networks",
2019, and Guo et al., "Single Path One-Shot", 2020.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

# Written on modules, so that copies of them remember it.
_MARK = "_naspipe_running_statistics"


def drop_statistics(module: nn.Module) -> None:
    """Take the running statistics of every normalisation below ``module`` away.

    They then normalise by the batch, in training mode and in evaluation mode.
    """
    for norm in _norms(module):
        if norm.track_running_stats:
            setattr(norm, _MARK, True)
            norm.track_running_stats = False
            norm.running_mean = None
            norm.running_var = None
            norm.num_batches_tracked = None


def restore_statistics(module: nn.Module) -> None:
    """Undo ``drop_statistics``; the statistics are those of a new module."""
    for norm in _norms(module):
        if getattr(norm, _MARK, False):
            delattr(norm, _MARK)
            norm.track_running_stats = True
            device = norm.weight.device if norm.weight is not None else None
            norm.running_mean = torch.zeros(norm.num_features, device=device)
            norm.running_var = torch.ones(norm.num_features, device=device)
            norm.num_batches_tracked = torch.tensor(0, dtype=torch.long, device=device)


def has_statistics(module: nn.Module) -> bool:
    """Tell whether some normalisation below ``module`` has running statistics."""
    return any(norm.track_running_stats for norm in _norms(module))


def calibrate_statistics(module: nn.Module, inputs: Iterable[Any]) -> None:
    """Set running statistics to their average over batches; leaves the module in evaluation mode.

    Args:
        module: An extracted subnet.
        inputs: Batches of input; the same ones for every subnet that is compared.
    """
    module.eval()
    norms = [norm for norm in _norms(module) if norm.track_running_stats]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over the batches
        norm.train()
    with torch.no_grad():
        for x in inputs:
            module(x)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    module.eval()


def _norms(module: nn.Module) -> list[Any]:
    # The common base of batch and instance normalisation has no public name.
    return [child for child in module.modules() if isinstance(child, _NormBase)]
