"""The training loop: walks the planned actions of all stages through their parts, in one process."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from naspipe.config.schema import TrainingConfig
from naspipe.errors import TrainingError
from naspipe.pipeline.action import Action, Kind
from naspipe.pipeline.partition import Cuts
from naspipe.pipeline.planner import Planner
from naspipe.search.sampler import Sampler
from naspipe.space import Architecture
from naspipe.supernet.supernet import Supernet
from naspipe.tasks.data import Batch, Dataset, EpochOrder, move_batch, require_microbatches, split_batch
from naspipe.tasks.task import Task
from naspipe.training.boundary import Slots, detach_payload
from naspipe.training.layers import Layer
from naspipe.training.part import Part
from naspipe.training.schedule import OptimizerFactory, schedule_factor


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
    unfinished: int
    batches: list[Batch] = field(default_factory=list)
    weight: float = 0.0
    losses: list[float] = field(default_factory=list)


class SupernetTrainer:
    """Trains a supernet on any number of logical stages in one process.

    Sequential training is its one-stage case. What is planned is what runs: each action of the plan, in the
    order of its start; results pass between parts by the unit they belong to.
    """

    def __init__(
        self,
        supernet: Supernet,
        task: Task,
        data: Dataset,
        sampler: Sampler,
        planner: Planner,
        cuts: Cuts,
        config: TrainingConfig,
        seed: int,
    ) -> None:
        """Prepare the training; nothing is computed yet.

        Args:
            supernet: Trained in place, on ``config.device``.
            task: Gives loss and weight.
            data: The training split.
            sampler: Says which subnet comes next; it has been started, and draws what the planner's draws.
            planner: Says which action comes next; it has not run.
            cuts: The partition into parts, the same for all subnets.
            config: The settings.
            seed: The run's seed.

        Raises:
            InputError: A batch would have fewer samples than micro-batches.
        """
        self._order = EpochOrder(data, config.batch_size, seed, "train")
        require_microbatches(len(data), config.batch_size, config.microbatches)
        self._supernet = supernet.to(config.device).train()
        self._task = task
        self._sampler = sampler
        self._planner = planner
        self._cuts = cuts
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
        blocks = list(supernet)
        self._parts = [
            Part(blocks[start:end], self.layers[start:end], start, seed) for start, end in itertools.pairwise(cuts)
        ]
        self._drawn = 0
        self._subnets: dict[int, _Subnet] = {}
        # What parts have sent each other, by (subnet, micro-batch, receiving part).
        self._activations: dict[tuple[int, int, int], Any] = {}
        self._gradients: dict[tuple[int, int, int], Slots] = {}

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
            self._draw_up_to(action.subnet)
            try:
                self._perform(action, ended)
            except TrainingError as error:
                raise TrainingError(f"{self._where(action)}: {error}") from error
            except Exception as error:
                raise TrainingError(f"{self._where(action)} failed: {type(error).__name__}: {error}") from error
            while reported in ended:
                on_subnet(ended.pop(reported))
                reported += 1

    def _where(self, action: Action) -> str:
        text = self._supernet.space.format(self._subnets[action.subnet].architecture)
        return f"supernet training, action {action}, subnet {action.subnet} ({text})"

    def _draw_up_to(self, index: int) -> None:
        """Draw subnets in order; a later one may be the first to start."""
        while self._drawn <= index:
            try:
                architecture = self._supernet.space.architecture(self._sampler.draw(self._drawn))
                used = self._supernet.used_layers(architecture)
            except Exception as error:
                raise TrainingError(
                    f"supernet training, subnet {self._drawn}: sampler {type(self._sampler).__name__} failed: "
                    f"{type(error).__name__}: {error}"
                ) from error
            uses = [[layer.name for layer in block] for block in used]
            self._subnets[self._drawn] = _Subnet(architecture, uses, unfinished=len(self._parts))
            self._drawn += 1

    def _perform(self, action: Action, ended: dict[int, SubnetRecord]) -> None:
        part = action.stage * self._planner.shape.segments + action.segment
        if action.kind is Kind.FORWARD:
            self._forward(action.subnet, action.microbatch, part)
        elif action.kind is Kind.BACKWARD:
            self._backward(action.subnet, action.microbatch, part)
        else:
            record = self._update(action.subnet, part)
            if record is not None:
                ended[action.subnet] = record

    def _forward(self, index: int, microbatch: int, part: int) -> None:
        subnet = self._subnets[index]
        if not subnet.batches:
            self._load_batch(index, subnet)
        batch = subnet.batches[microbatch]
        payload = self._activations.pop((index, microbatch, part)) if part else batch.inputs
        uses = subnet.uses[self._cuts[part] : self._cuts[part + 1]]
        output = self._parts[part].forward(index, subnet.architecture, microbatch, payload, uses)
        if part + 1 < len(self._parts):
            self._activations[index, microbatch, part + 1] = detach_payload(output)
            return

        def loss(outputs: object) -> Tensor:
            return self._task.loss(outputs, batch.targets) / subnet.weight

        value = float(self._parts[part].loss(index, microbatch, output, loss).item())
        if not math.isfinite(value):
            raise TrainingError(
                f"the loss must be finite, but is {value}. Lower training.optimizer.lr, or set training.clip_norm."
            )
        subnet.losses.append(value)

    def _backward(self, index: int, microbatch: int, part: int) -> None:
        last = part + 1 == len(self._parts)
        gradients = None if last else self._gradients.pop((index, microbatch, part))
        back = self._parts[part].backward(index, microbatch, gradients)
        if part:
            self._gradients[index, microbatch, part - 1] = back

    def _load_batch(self, index: int, subnet: _Subnet) -> None:
        batch = move_batch(self._order.batch(index), self._config.device)
        subnet.weight = self._task.weight(batch.targets)
        subnet.batches = split_batch(batch, self._config.microbatches)

    def _update(self, index: int, part: int) -> SubnetRecord | None:
        """Update a part's layers; return the subnet's record if it was the last part."""
        config, subnet = self._config, self._subnets[index]
        lr = self._optimizers.lr * schedule_factor(config.schedule, index, config.subnets)
        self._parts[part].update(index, lr)
        subnet.unfinished -= 1
        if subnet.unfinished:
            return None
        del self._subnets[index]
        return SubnetRecord(index, subnet.architecture, math.fsum(subnet.losses), lr)
