"""Running statistics of normalisations: none while the supernet trains, calibrated before a subnet is evaluated.

If all subnets updated the same running statistics, results would depend on their order, and the statistics of different
subnets would mix. (Calibration after Yu and Huang, "Universally Slimmable Networks", 2019, and Guo et al., "Single Path
One-Shot", 2020.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

# An attribute of modules, so that their copies have it too.
_MARK = "_naspipe_running_statistics"


def drop_statistics(module: nn.Module) -> None:
    """Remove the running statistics of every normalisation in ``module``.

    These normalisations then use the statistics of each batch, in training mode and in evaluation mode.
    """
    for norm in _norms(module):
        if norm.track_running_stats:
            setattr(norm, _MARK, True)
            norm.track_running_stats = False
            norm.running_mean = None
            norm.running_var = None
            norm.num_batches_tracked = None


def restore_statistics(module: nn.Module) -> None:
    """Undo ``drop_statistics``; the running statistics are those of a new module."""
    for norm in _norms(module):
        if getattr(norm, _MARK, False):
            delattr(norm, _MARK)
            norm.track_running_stats = True
            device = norm.weight.device if norm.weight is not None else None
            norm.running_mean = torch.zeros(norm.num_features, device=device)
            norm.running_var = torch.ones(norm.num_features, device=device)
            norm.num_batches_tracked = torch.tensor(0, dtype=torch.long, device=device)


def has_statistics(module: nn.Module) -> bool:
    """Tell whether some normalisation in ``module`` has running statistics."""
    return any(norm.track_running_stats for norm in _norms(module))


def calibrate_statistics(module: nn.Module, inputs: Iterable[Any]) -> None:
    """Set running statistics to their average over batches, and put the module into evaluation mode.

    Args:
        module: An extracted subnet.
        inputs: The inputs of some batches, the same for all subnets that are compared.
    """
    module.eval()
    norms = [norm for norm in _norms(module) if norm.track_running_stats]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # torch's setting for a plain average over the batches
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
