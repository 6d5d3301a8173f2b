"""Learning-rate schedules as functions of the step, and optimizers from their configuration."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from naspipe.config.optimizers import optimizer_class
from naspipe.config.resolve import optimizer_arguments
from naspipe.config.schema import PluginConfig, ScheduleConfig


def schedule_factor(schedule: ScheduleConfig, step: int, steps: int) -> float:
    """Return the factor of the base learning rate at a step.

    It depends on the step alone, since subnets may be updated out of order.

    Args:
        schedule: The schedule's name and parameters.
        step: In [0, steps).
        steps: Number of steps in all.
    """
    if step < schedule.warmup:
        return (step + 1) / schedule.warmup
    if schedule.name == "constant":
        return 1.0
    progress = (step - schedule.warmup) / max(1, steps - schedule.warmup)
    if schedule.name == "linear":
        return 1 - (1 - schedule.final) * progress
    return schedule.final + (1 - schedule.final) * (1 + math.cos(math.pi * progress)) / 2


class OptimizerFactory:
    """Makes optimizers of one configuration."""

    def __init__(self, config: PluginConfig) -> None:
        """Read the configuration.

        Args:
            config: A torch.optim class by name, with all its arguments.
        """
        self._class: Any = optimizer_class(config.name)
        self._arguments = optimizer_arguments(config.name, config.parameters)
        self.lr = float(self._arguments["lr"])

    def __call__(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Return a new optimizer of some parameters."""
        optimizer: torch.optim.Optimizer = self._class(parameters, **self._arguments)
        return optimizer
