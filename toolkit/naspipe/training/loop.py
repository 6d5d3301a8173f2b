"""The training loop: walks the planned actions through a stage."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from naspipe.config.schema import TrainingConfig
from naspipe.errors import InputError, TrainingError
from naspipe.executors.executor import Executor
from naspipe.pipeline.action import Action, Kind
from naspipe.pipeline.planner import plan_actions
from naspipe.search.sampler import Sampler
from naspipe.space import Architecture
from naspipe.supernet.supernet import Supernet
from naspipe.tasks.data import Batch, Dataset, EpochOrder, move_batch, split_batch
from naspipe.tasks.task import Task
from naspipe.training.layers import Layer
from naspipe.training.schedule import OptimizerFactory, schedule_factor
from naspipe.training.stage import Stage


@dataclass(frozen=True)
class SubnetRecord:
    """What is known of a subnet once it has been trained.

    Attributes:
        index: Its place in the sequence.
        architecture: What it is.
        loss: Mean loss over its batch, before its update.
        lr: Learning rate of its update.
    """

    index: int
    architecture: Architecture
    loss: float
    lr: float


@dataclass
class _Subnet:
    """A subnet in flight."""

    architecture: Architecture
    uses: list[list[str]]
    batches: list[Batch]
    weight: float
    losses: list[float] = field(default_factory=list)


class SupernetTrainer:
    """Trains a supernet: one stage, one process."""

    def __init__(
        self,
        supernet: Supernet,
        task: Task,
        data: Dataset,
        sampler: Sampler,
        executor: Executor,
        config: TrainingConfig,
        seed: int,
    ) -> None:
        """Prepare the training; nothing is computed yet.

        Args:
            supernet: Trained in place, on ``config.device``.
            task: Gives loss and weight.
            data: The training split.
            sampler: Says which subnet comes next; it has been started.
            executor: Says which action comes next.
            config: The settings.
            seed: The run's seed.

        Raises:
            InputError: A batch would have fewer samples than micro-batches.
        """
        self._order = EpochOrder(data, config.batch_size, seed, "train")
        smallest = min(config.batch_size, len(data), len(data) % config.batch_size or len(data))
        if smallest < config.microbatches:
            raise InputError(
                f"training.microbatches must be at most the samples of the smallest batch, but is "
                f"{config.microbatches}, and with {len(data)} samples and training.batch_size = "
                f"{config.batch_size} a batch has {smallest}. Choose fewer micro-batches or another "
                "batch size."
            )
        self._supernet = supernet.to(config.device).train()
        self._task = task
        self._sampler = sampler
        self._executor = executor
        self._config = config
        self._optimizers = OptimizerFactory(config.optimizer)
        self.layers = [
            {
                spec.name: Layer(
                    spec,
                    self._optimizers,
                    delay=0 if spec.strict else config.delay,
                    clip_norm=config.clip_norm,
                )
                for spec in specs.values()
            }
            for specs in supernet.layers_by_block
        ]
        self._stage = Stage(list(supernet), self.layers, seed)
        self._subnets: dict[int, _Subnet] = {}

    def run(self, on_subnet: Callable[[SubnetRecord], None]) -> None:
        """Train all subnets.

        Args:
            on_subnet: Called for each subnet in order, once it has been trained.

        Raises:
            TrainingError: A loss was not finite, or a block failed.
        """
        config = self._config
        for action in plan_actions(self._executor, config.subnets, config.microbatches):
            try:
                record = self._perform(action)
            except TrainingError as error:
                raise TrainingError(f"{self._where(action)}: {error}") from error
            except Exception as error:
                raise TrainingError(
                    f"{self._where(action)} failed: {type(error).__name__}: {error}"
                ) from error
            if record is not None:
                on_subnet(record)

    def _where(self, action: Action) -> str:
        subnet = self._subnets.get(action.subnet)
        text = self._supernet.space.format(subnet.architecture) if subnet else "not drawn yet"
        return f"supernet training, action {action}, subnet {action.subnet} ({text})"

    def _perform(self, action: Action) -> SubnetRecord | None:
        index, part = action.subnet, action.microbatch
        if action.kind is Kind.FORWARD:
            self._forward(index, part)
        elif action.kind is Kind.BACKWARD:
            self._stage.backward(index, part)
        else:
            return self._update(index)
        return None

    def _forward(self, index: int, part: int) -> None:
        subnet = self._subnets.get(index)
        if subnet is None:
            subnet = self._subnets[index] = self._admit(index)
        batch = subnet.batches[part]
        output = self._stage.forward(index, subnet.architecture, part, batch.inputs, subnet.uses)

        def loss(outputs: object) -> Tensor:
            return self._task.loss(outputs, batch.targets) / subnet.weight

        value = float(self._stage.loss(index, part, output, loss).item())
        if not math.isfinite(value):
            raise TrainingError(
                f"the loss must be finite, but is {value}. Lower training.optimizer.lr, or set "
                "training.clip_norm."
            )
        subnet.losses.append(value)

    def _admit(self, index: int) -> _Subnet:
        architecture = self._supernet.space.architecture(self._sampler.draw(index))
        uses = [[layer.name for layer in used] for used in self._supernet.used_layers(architecture)]
        batch = move_batch(self._order.batch(index), self._config.device)
        weight = self._task.weight(batch.targets)
        return _Subnet(architecture, uses, split_batch(batch, self._config.microbatches), weight)

    def _update(self, index: int) -> SubnetRecord:
        config = self._config
        lr = self._optimizers.lr * schedule_factor(config.schedule, index, config.subnets)
        self._stage.update(index, lr)
        subnet = self._subnets.pop(index)
        return SubnetRecord(index, subnet.architecture, math.fsum(subnet.losses), lr)
