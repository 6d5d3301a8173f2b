"""The feed: subnets in flight, with micro-batches that are loaded when the trainer needs them."""

from __future__ import annotations

from dataclasses import dataclass, field

from naspipe.config.schema import TrainingConfig
from naspipe.errors import TrainingError
from naspipe.space import Architecture
from naspipe.tasks.data import Batch, Dataset, EpochOrder, move_batch, require_splittable, split_batch
from naspipe.tasks.task import Task
from naspipe.training.subnet_stream import DrawnSubnet, SubnetStream


@dataclass
class SubnetInFlight:
    """A subnet between its first action and its last update in this process.

    Attributes:
        architecture: Its architecture.
        layers: For every block the names of the layers that it uses.
        batches: Its micro-batches; empty until they are loaded.
        weight: Divisor of the summed loss of the whole batch; 0 until the micro-batches are loaded.
        losses: Losses of the micro-batches so far, each divided by the weight; in the process of the last part.
        finite: Whether all losses are finite, as far as this process knows.
    """

    architecture: Architecture
    layers: list[list[str]]
    batches: list[Batch] = field(default_factory=list)
    weight: float = 0.0
    losses: list[float] = field(default_factory=list)
    finite: bool = True


class SubnetFeed:
    """Gives the trainer the subnets in the order of their draws, and their batches."""

    def __init__(self, stream: SubnetStream, task: Task, data: Dataset, config: TrainingConfig, seed: int) -> None:
        """Prepare to load; nothing is loaded yet.

        Args:
            stream: The subnets.
            task: The task, which weighs batches.
            data: The training split.
            config: Batch size, micro-batches and device.
            seed: The run's seed.

        Raises:
            InputError: A batch would have fewer samples than micro-batches.
        """
        require_splittable(len(data), config.batch_size, config.microbatches, "training.microbatches")
        self._order = EpochOrder(data, config.batch_size, seed, "train")
        self._stream = stream
        self._task = task
        self._config = config
        self._subnets: dict[int, SubnetInFlight] = {}

    def take(self) -> DrawnSubnet:
        """Take the next subnet from the stream, and return it."""
        drawn = self._stream.take()
        self._subnets[drawn.number] = SubnetInFlight(drawn.architecture, drawn.layers)
        return drawn

    def subnet(self, index: int) -> SubnetInFlight:
        """Return a subnet in flight; its micro-batches may not be loaded yet."""
        return self._subnets[index]

    def loaded(self, index: int) -> SubnetInFlight:
        """Return a subnet in flight with its micro-batches.

        Raises:
            TrainingError: The batch cannot be loaded.
        """
        subnet = self._subnets[index]
        if not subnet.batches:
            try:
                batch = move_batch(self._order.batch(index), self._config.device)
                subnet.weight = self._task.weight(batch.targets)
                subnet.batches = split_batch(batch, self._config.microbatches)
            except Exception as error:
                raise TrainingError(
                    f"batch {index} of the training data failed: {type(error).__name__}: {error}"
                ) from error
        return subnet

    def end(self, index: int) -> SubnetInFlight:
        """Drop a subnet after its last update in this process, and return it."""
        return self._subnets.pop(index)
