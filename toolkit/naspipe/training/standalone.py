"""Stand-alone training: an architecture is an ordinary module, trained in the ordinary way."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from naspipe.config.schema import RetrainConfig
from naspipe.errors import TrainingError
from naspipe.keys import derive_key
from naspipe.supernet.determinism import seed_generators
from naspipe.tasks.data import Batch, Dataset, EpochOrder, move_batch
from naspipe.tasks.task import Task
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


class SingleProcess:
    """A process that trains a module alone; a subclass is one of several that share each batch.

    Attributes:
        rank: Number of this process.
        processes: Number of processes that train together.
    """

    rank = 0
    processes = 1

    @property
    def leads(self) -> bool:
        """Whether this process logs, saves and tests."""
        return self.rank == 0

    def samples(self, batch: Batch) -> Batch:
        """Return this process's samples of a batch."""
        return batch

    def key(self, seed: int, *parts: int | str) -> int:
        """Return the key of random draws for this process's samples, such as dropout."""
        return derive_key(seed, *parts)

    def wrap(self, module: nn.Module, loss_of: Callable[[nn.Module], Tensor]) -> nn.Module:
        """Return the module that the training calls instead of a module.

        Args:
            module: The module to train, in training mode.
            loss_of: Returns the loss of this process's samples of the first batch for a module.
        """
        return module

    def total(self, value: float) -> float:
        """Return the sum of a number over all processes."""
        return value

    def wait_for_leader(self, name: str) -> None:
        """Wait until the leading process calls this with the same name."""


SINGLE_PROCESS = SingleProcess()


def retrain(
    module: nn.Module,
    task: Task,
    data: Dataset,
    config: RetrainConfig,
    seed: int,
    device: str,
    on_epoch: Callable[[EpochRecord], None],
    process: SingleProcess = SINGLE_PROCESS,
) -> None:
    """Train a module in place.

    Several processes divide every batch among them. Each divides its loss by the weight of the whole batch, so the sum
    of their gradients is the gradient of the whole batch's loss.

    Args:
        module: An ordinary module.
        task: Defines loss and weight.
        data: The training split.
        config: The settings; ``process`` decides about the number of processes instead of them.
        seed: The run's seed; keys the batches and the draws of every step.
        device: ``cpu`` or ``cuda``.
        on_epoch: Called after each epoch.
        process: This process; all processes of a training make the same call.

    Raises:
        TrainingError: A loss was not finite, or the module or the task failed.
    """
    module.to(device).train()
    optimizers = OptimizerFactory(config.optimizer)
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    # If no operation of the architecture has parameters, there is nothing to train.
    optimizer = optimizers(parameters) if parameters else None
    order = EpochOrder(data, config.batch_size, seed, "retrain")
    steps = config.epochs * order.batches_per_epoch
    lr = optimizers.lr

    def first_loss(tried: nn.Module) -> Tensor:
        first = process.samples(move_batch(order.batch(0), device))
        seed_generators(process.key(seed, "retrain", 0))
        return task.loss(tried(first.inputs), first.targets)

    with calling("retraining, before its first step", TrainingError):
        runner = process.wrap(module, first_loss)
    for epoch in range(config.epochs):
        total = weight = 0.0
        for step in range(epoch * order.batches_per_epoch, (epoch + 1) * order.batches_per_epoch):
            with calling(f"retraining, epoch {epoch}, step {step}", TrainingError):
                batch = move_batch(order.batch(step), device)
                seed_generators(process.key(seed, "retrain", step))
                batch_weight = task.weight(batch.targets)
                own = process.samples(batch)
                loss = task.loss(runner(own.inputs), own.targets)
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
                # Gradients are averaged over the processes, but their sum is needed.
                torch.autograd.backward(process.processes * loss / batch_weight)
                if config.clip_norm is not None:
                    nn.utils.clip_grad_norm_(parameters, config.clip_norm)
                optimizer.step()
        on_epoch(EpochRecord(epoch, process.total(total) / weight, lr))
