"""The training loop: walks the planned actions through a stage."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from torch import Tensor

from naspipe.config.schema import TrainingConfig
from naspipe.errors import InputError, TrainingError
from naspipe.executors.executor import Executor, PipelineShape
from naspipe.pipeline.action import Action, Kind
from naspipe.pipeline.costs import CostTable
from naspipe.pipeline.planner import Planner
from naspipe.pipeline.subnet import SubnetShape, UsedLayer
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
    batches: list[Batch] = field(default_factory=list)
    weight: float = 0.0
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
        window: int | None = None,
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
            window: Subnets in flight at most, or None: the executor says.

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
        self._config = config
        self._optimizers = OptimizerFactory(config.optimizer)
        self.layers = [
            {
                spec.name: Layer(
                    spec,
                    self._optimizers,
                    delay=None if spec.strict else config.delay,
                    clip_norm=config.clip_norm,
                )
                for spec in specs.values()
            }
            for specs in supernet.layers_by_block
        ]
        self._stage = Stage(list(supernet), self.layers, seed)
        self._subnets: dict[int, _Subnet] = {}
        always_active = [layer.block for layer in supernet.layers() if not layer.strict]
        shape = PipelineShape(
            stages=1,
            microbatches=config.microbatches,
            subnets=config.subnets,
            delay=config.delay if always_active else None,
        )
        cuts = (0, len(supernet))
        self._planner = Planner(
            executor, shape, self._admit(), lambda subnet: cuts, always_active=always_active, window=window
        )

    def run(self, on_subnet: Callable[[SubnetRecord], None]) -> None:
        """Train all subnets.

        Args:
            on_subnet: Called for each subnet in order, once it has been trained.

        Raises:
            TrainingError: A loss was not finite, or a block failed.
        """
        # Subnets may end out of order; whoever listens gets them in order.
        ended: dict[int, SubnetRecord] = {}
        reported = 0
        for planned in self._planner.run():
            action = planned.action
            try:
                self._perform(action, ended)
            except TrainingError as error:
                raise TrainingError(f"{self._where(action)}: {error}") from error
            except Exception as error:
                raise TrainingError(
                    f"{self._where(action)} failed: {type(error).__name__}: {error}"
                ) from error
            while reported in ended:
                on_subnet(ended.pop(reported))
                reported += 1

    def _where(self, action: Action) -> str:
        subnet = self._subnets.get(action.subnet)
        text = self._supernet.space.format(subnet.architecture) if subnet else "not drawn yet"
        return f"supernet training, action {action}, subnet {action.subnet} ({text})"

    def _perform(self, action: Action, ended: dict[int, SubnetRecord]) -> None:
        index, part = action.subnet, action.microbatch
        if action.kind is Kind.FORWARD:
            self._forward(index, part)
        elif action.kind is Kind.BACKWARD:
            self._stage.backward(index, part)
        else:
            ended[index] = self._update(index)

    def _forward(self, index: int, part: int) -> None:
        subnet = self._subnets[index]
        if not subnet.batches:
            self._load_batch(index, subnet)
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

    def _admit(self) -> Iterator[SubnetShape]:
        """Draw the subnets one by one, as the planner admits them."""
        costs = CostTable.uniform(len(self._supernet))
        for index in itertools.count():
            try:
                architecture = self._supernet.space.architecture(self._sampler.draw(index))
                used = self._supernet.used_layers(architecture)
            except Exception as error:
                raise TrainingError(
                    f"supernet training, subnet {index}: sampler {type(self._sampler).__name__} failed: "
                    f"{type(error).__name__}: {error}"
                ) from error
            self._subnets[index] = _Subnet(architecture, [[layer.name for layer in block] for block in used])
            yield costs.describe([[UsedLayer(layer.name, layer.strict) for layer in block] for block in used])

    def _load_batch(self, index: int, subnet: _Subnet) -> None:
        batch = move_batch(self._order.batch(index), self._config.device)
        subnet.weight = self._task.weight(batch.targets)
        subnet.batches = split_batch(batch, self._config.microbatches)

    def _update(self, index: int) -> SubnetRecord:
        config = self._config
        lr = self._optimizers.lr * schedule_factor(config.schedule, index, config.subnets)
        self._stage.update(index, lr)
        subnet = self._subnets.pop(index)
        return SubnetRecord(index, subnet.architecture, math.fsum(subnet.losses), lr)
