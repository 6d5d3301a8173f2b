"""A part: runs actions on its blocks, and keeps what the backward needs until it has run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from naspipe.errors import TrainingError
from naspipe.keys import derive_key
from naspipe.space import Architecture
from naspipe.supernet.block import Block
from naspipe.supernet.determinism import seed_generators
from naspipe.training.boundary import Slots, backward_block, detach_payload, enter_block, leave_block
from naspipe.training.layers import Layer, Snapshot
from naspipe.training.spec_check import SpecCheck
from naspipe.training.tensor_spec import PayloadSpec, spec_of

_Snapshots = list[tuple[Layer, Snapshot]]

LayerVersion = tuple[int, str, int]
"""Index of a block, name of a layer in it, and a version of that layer."""


@dataclass(frozen=True)
class _Tape:
    """What the backward of one block needs: outputs, where gradients enter, and inputs, where they leave."""

    inputs: Slots
    outputs: Slots

    def replay(self) -> _Tape:
        """Return itself: everything was kept."""
        return self


@dataclass(frozen=True)
class _Script:
    """With activation checkpointing: a block's input, and the function that runs the block again."""

    run: Callable[[Any], Any]
    payload: Any

    def replay(self) -> _Tape:
        """Run the block again, and return what its backward needs."""
        tapes: list[_Tape | _Script] = []
        _record(self.run, self.payload, tapes)
        tape = tapes[0]
        assert isinstance(tape, _Tape)
        return tape


@dataclass
class _InFlight:
    """A subnet between its first forward and its update in this part."""

    architecture: Architecture
    snapshots: list[_Snapshots] = field(default_factory=list)
    tapes: dict[int, list[_Tape | _Script]] = field(default_factory=dict)


class Part:
    """A contiguous run of blocks on one device: a stage, or one of its segments.

    Attributes:
        passed: Payload specs of the last forward: the input of the first block, then the output of each block.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        layers: Sequence[dict[str, Layer]],
        first_block: int,
        seed: int,
        recompute: bool = False,
        surround: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
        check: SpecCheck | None = None,
    ) -> None:
        """Take charge of blocks.

        Args:
            blocks: The blocks, in order.
            layers: For every block its layers by name.
            first_block: Index of the first of these blocks in the supernet.
            seed: The run's seed, which keys the draws within blocks (dropout).
            recompute: Use activation checkpointing: keep only the input of each block, and run the block again in the
                backward.
            surround: Returns the context in which each block and the loss run.
            check: Checks the tensor specs of what the blocks return; None: nothing is checked.
        """
        self._surround = surround
        self._recompute = recompute
        self._blocks = blocks
        self._layers = layers
        self._first_block = first_block
        self._seed = seed
        self._subnets: dict[int, _InFlight] = {}
        self._check = check
        self.passed: list[PayloadSpec] = []

    def forward(
        self,
        subnet: int,
        architecture: Architecture,
        microbatch: int,
        payload: Any,
        uses: Sequence[Sequence[str]],
    ) -> Any:
        """Run the blocks forward on one unit.

        Args:
            subnet: Place of the subnet in the sequence.
            architecture: The subnet's architecture.
            microbatch: Index of the micro-batch. The first one reads the layers for all micro-batches of the subnet.
            payload: The output of the part before, or the micro-batch's input.
            uses: For every block of this part the names of the layers that the architecture uses.

        Returns:
            The last block's output.
        """
        state = self._subnets.get(subnet)
        if state is None:
            snapshots = [
                [(layer, layer.read(subnet)) for layer in map(layers.__getitem__, names)]
                for layers, names in zip(self._layers, uses, strict=True)
            ]
            state = self._subnets[subnet] = _InFlight(architecture, snapshots)
        tapes = state.tapes[microbatch] = []
        self.passed = [spec_of(payload)]
        for index, block in enumerate(self._blocks):
            own = state.snapshots[index]
            key = derive_key(self._seed, "block", subnet, microbatch, self._first_block + index)

            def run(x: Any, block: Block = block, snapshots: _Snapshots = own, key: int = key) -> Any:
                seed_generators(key)
                with self._surround(), _using(snapshots):
                    return block(x, architecture)

            with self._naming(index):
                if self._recompute:
                    tapes.append(_Script(run, detach_payload(payload)))
                    payload = _run_without_graph(run, payload)
                else:
                    payload = _record(run, payload, tapes)
                self.passed.append(spec_of(payload))
                if self._check is not None:
                    self._check.check_variant(self._first_block + index, architecture, *self.passed[-2:])
        return payload

    def loss(self, subnet: int, microbatch: int, payload: Any, loss: Callable[[Any], Tensor]) -> Tensor:
        """Compute the loss of a unit from the last block's output, which crosses a block boundary first.

        Returns:
            The loss, without its graph.
        """

        def run(outputs: Any) -> Tensor:
            with self._surround():
                return loss(outputs)

        with self._naming(len(self._blocks)):
            value: Tensor = _record(run, payload, self._subnets[subnet].tapes[microbatch])
        return value.detach()

    def backward(self, subnet: int, microbatch: int, gradients: Sequence[Tensor | None] | None = None) -> Slots:
        """Run the blocks backward on one unit, and free what was kept for that.

        Args:
            subnet: Place of the subnet in the sequence.
            microbatch: Index of the micro-batch.
            gradients: Gradients of the part's output, one for each leaf; None starts at the loss.

        Returns:
            The gradients of the part's input.
        """
        tapes = self._subnets[subnet].tapes.pop(microbatch)
        flowing = gradients
        while tapes:
            script = tapes.pop()
            with self._naming(len(tapes)):
                tape = script.replay()
                if flowing is None:
                    flowing = _ones(tape)
                flowing = backward_block(tape.outputs, flowing, tape.inputs)
        assert flowing is not None
        return list(flowing)

    def update(self, subnet: int, lr: float, skip: bool = False) -> None:
        """Update every layer that a subnet used, in the order of blocks, and drop the subnet.

        Args:
            subnet: Place of the subnet in the sequence.
            lr: Learning rate of this step.
            skip: Advance the versions, and change no weight.
        """
        for block in self._subnets.pop(subnet).snapshots:
            for layer, snapshot in block:
                layer.update(subnet, snapshot, lr, skip)

    def versions_read(self, subnet: int) -> list[LayerVersion]:
        """Return the version of each layer that a subnet in flight has read."""
        snapshots = self._subnets[subnet].snapshots
        return [
            (layer.spec.block, layer.spec.name, snapshot.version) for block in snapshots for layer, snapshot in block
        ]

    def versions_to_update(self, subnet: int) -> list[LayerVersion]:
        """Return the present version of each layer that a subnet's update changes, now or when its turn comes."""
        snapshots = self._subnets[subnet].snapshots
        return [(layer.spec.block, layer.spec.name, layer.version) for block in snapshots for layer, _ in block]

    @contextlib.contextmanager
    def _naming(self, index: int) -> Iterator[None]:
        """Name the block in which an exception is raised; the index after the last is the loss."""
        try:
            yield
        except TrainingError:
            raise
        except Exception as error:
            number = self._first_block + index
            kind = type(self._blocks[index]).__name__ if index < len(self._blocks) else ""
            where = f"block {number} ({kind})" if kind else "the loss"
            raise TrainingError(f"{where} failed: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _using(snapshots: _Snapshots) -> Iterator[None]:
    """Let a block's layers use the tensors that a subnet reads, as ``torch.func.functional_call`` does.

    That function looks each parameter up by its path, which took 3 % of a training. Layers know their places.
    """
    for layer, snapshot in snapshots:
        for (module, name), tensor in zip(layer.slots, snapshot.tensors.values(), strict=True):
            module._parameters[name] = tensor  # type: ignore[assignment]  # a leaf that shares a parameter's storage
    try:
        yield
    finally:
        for layer, _ in snapshots:
            for (module, name), parameter in zip(layer.slots, layer.spec.parameters.values(), strict=True):
                module._parameters[name] = parameter


def _run_without_graph(run: Callable[[Any], Any], payload: Any) -> Any:
    """Run a function between two boundaries and keep nothing; outputs that need a gradient are marked."""
    # The graph is built and dropped at once: only the graph shows which outputs need a gradient.
    with torch.enable_grad():
        x, _ = enter_block(payload)
        return detach_payload(run(x))


def _record(run: Callable[[Any], Any], payload: Any, tapes: list[_Tape | _Script]) -> Any:
    """Run a function between two boundaries, and keep what its backward needs."""
    with torch.enable_grad():
        x, inputs = enter_block(payload)
        output = run(x)
    tapes.append(_Tape(inputs, leave_block(output)))
    return output


def _ones(tape: _Tape) -> Slots:
    return [torch.ones_like(output) if output is not None else None for output in tape.outputs]
