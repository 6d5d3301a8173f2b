"""Retraining: an architecture as an ordinary module, trained in the ordinary way."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from naspipe.config.schema import RetrainConfig
from naspipe.errors import TrainingError
from naspipe.supernet.determinism import seed_generators
from naspipe.tasks.data import Dataset, EpochOrder, move_batch
from naspipe.tasks.task import Task
from naspipe.training.data_parallel import SINGLE_PROCESS, SingleProcess
from naspipe.training.schedule import OptimizerFactory, schedule_factor
from naspipe.usercode import calling


@dataclass(frozen=True)
class EpochRecord:
    """One pass over the training split.

    Attributes:
        epoch: Its index.
        loss: Mean loss over its batches, each before its update.
        lr: Learning rate of its last step.
    """

    epoch: int
    loss: float
    lr: float


def retrain(
    module: nn.Module,
    task: Task,
    data: Dataset,
    config: RetrainConfig,
    seed: int,
    device: str,
    on_epoch: Callable[[EpochRecord], None],
    share: SingleProcess = SINGLE_PROCESS,
) -> None:
    """Train a module in place.

    With several processes each runs its part of every batch. The loss of a part is divided by the weight of the whole
    batch, so that the sum of the gradients is that of the whole batch's loss.

    Args:
        module: An ordinary module.
        task: Gives loss and weight.
        data: The training split.
        config: The settings; ``share`` says in how many processes it is done, whatever they say.
        seed: The run's seed; keys the batches and the draws of every step.
        device: Where to train.
        on_epoch: Called after each epoch.
        share: What of the training is this process's; all processes of a training call this alike.

    Raises:
        TrainingError: A loss was not finite, or the module or the task failed.
    """
    module.to(device).train()
    optimizers = OptimizerFactory(config.optimizer)
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    # An architecture of nothing but operations without parameters has nothing to train.
    optimizer = optimizers(parameters) if parameters else None
    order = EpochOrder(data, config.batch_size, seed, "retrain")
    steps = config.epochs * order.batches_per_epoch
    lr = optimizers.lr

    def first_loss(tried: nn.Module) -> Tensor:
        first = share.part(move_batch(order.batch(0), device))
        seed_generators(share.key(seed, "retrain", 0))
        return task.loss(tried(first.inputs), first.targets)

    with calling("retraining, before its first step", TrainingError):
        runner = share.wrap(module, first_loss)
    for epoch in range(config.epochs):
        total = weight = 0.0
        for step in range(epoch * order.batches_per_epoch, (epoch + 1) * order.batches_per_epoch):
            with calling(f"retraining, epoch {epoch}, step {step}", TrainingError):
                batch = move_batch(order.batch(step), device)
                seed_generators(share.key(seed, "retrain", step))
                batch_weight = task.weight(batch.targets)
                part = share.part(batch)
                loss = task.loss(runner(part.inputs), part.targets)
                value = float(loss.item())
                if not math.isfinite(value):
                    raise TrainingError(
                        f"retraining, epoch {epoch}, step {step}: the loss must be finite, but is {value}. "
                        "Lower retrain.optimizer.lr, or set retrain.clip_norm."
                    )
                total += value
                weight += batch_weight
                if optimizer is None or not loss.requires_grad:
                    continue
                lr = optimizers.lr * schedule_factor(config.schedule, step, steps)
                for group in optimizer.param_groups:
                    group["lr"] = lr
                optimizer.zero_grad()
                # Gradients are averaged over the processes, and must be added up.
                torch.autograd.backward(share.processes * loss / batch_weight)
                if config.clip_norm is not None:
                    nn.utils.clip_grad_norm_(parameters, config.clip_norm)
                optimizer.step()
        on_epoch(EpochRecord(epoch, share.total(total) / weight, lr))
