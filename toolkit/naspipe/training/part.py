"""A part: runs actions on its blocks and keeps what the backward needs, no longer than it does."""

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
"""A block, a layer of it, and a version."""


@dataclass(frozen=True)
class _Tape:
    """What one block's backward needs: where gradients enter it, and where they come out."""

    inputs: Slots
    outputs: Slots

    def replay(self) -> _Tape:
        """Return itself: everything has been kept."""
        return self


@dataclass(frozen=True)
class _Script:
    """What it takes to run a block again: its input and how it is run."""

    run: Callable[[Any], Any]
    payload: Any

    def replay(self) -> _Tape:
        """Run the block again, with what its backward needs."""
        tapes: list[_Tape | _Script] = []
        _record(self.run, self.payload, tapes)
        tape = tapes[0]
        assert isinstance(tape, _Tape)
        return tape


@dataclass
class _InFlight:
    """A subnet between its first forward and its update."""

    architecture: Architecture
    readings: list[_Snapshots] = field(default_factory=list)
    tapes: dict[int, list[_Tape | _Script]] = field(default_factory=dict)


class Part:
    """A contiguous run of blocks on one device: a stage, or one of its segments.

    Attributes:
        passed: BoundarySpecs of the last forward: of what the first block took, and of what each returned.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        layers: Sequence[dict[str, Layer]],
        first_block: int,
        seed: int,
        recompute: bool = False,
        surround: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
        forms: SpecCheck | None = None,
    ) -> None:
        """Take charge of blocks.

        Args:
            blocks: The blocks, in order.
            layers: For every block its layers by name.
            first_block: Index of the first of them in the supernet.
            seed: The run's seed, which keys the draws within blocks (dropout).
            recompute: Keep only the input of each block and run it again in the backward.
            surround: Makes the context in which each block and the loss run.
            forms: Judges what the blocks return, or None.
        """
        self._surround = surround
        self._recompute = recompute
        self._blocks = blocks
        self._layers = layers
        self._first_block = first_block
        self._seed = seed
        self._subnets: dict[int, _InFlight] = {}
        self._forms = forms
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
            architecture: What it is.
            microbatch: Index of the micro-batch; the first one reads the layers for all.
            payload: What the part before returned, or the micro-batch's input.
            uses: For every block of this part the names of the layers the architecture uses.

        Returns:
            The last block's output.
        """
        state = self._subnets.get(subnet)
        if state is None:
            readings = [
                [(layer, layer.read(subnet)) for layer in map(layers.__getitem__, names)]
                for layers, names in zip(self._layers, uses, strict=True)
            ]
            state = self._subnets[subnet] = _InFlight(architecture, readings)
        tapes = state.tapes[microbatch] = []
        self.passed = [spec_of(payload)]
        for index, block in enumerate(self._blocks):
            own = state.readings[index]
            key = derive_key(self._seed, "block", subnet, microbatch, self._first_block + index)

            def run(x: Any, block: Block = block, readings: _Snapshots = own, key: int = key) -> Any:
                seed_generators(key)
                with self._surround(), _reading(readings):
                    return block(x, architecture)

            with self._naming(index):
                if self._recompute:
                    tapes.append(_Script(run, detach_payload(payload)))
                    payload = _run_without_graph(run, payload)
                else:
                    payload = _record(run, payload, tapes)
                self.passed.append(spec_of(payload))
                if self._forms is not None:
                    self._forms.check_variant(self._first_block + index, architecture, *self.passed[-2:])
        return payload

    def loss(self, subnet: int, microbatch: int, payload: Any, loss: Callable[[Any], Tensor]) -> Tensor:
        """Compute the loss of a unit from the last block's output; it is a boundary like any other.

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
        """Run the blocks backward on one unit and free what it held.

        Args:
            subnet: Place of the subnet in the sequence.
            microbatch: Index of the micro-batch.
            gradients: Of the part's output, or None to start at the loss.

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
        """Update every layer that a subnet used, in the order of blocks, and forget the subnet.

        Args:
            subnet: Place of the subnet in the sequence.
            lr: Learning rate of this step.
            skip: Let the versions advance and change nothing.
        """
        for block in self._subnets.pop(subnet).readings:
            for layer, reading in block:
                layer.update(subnet, reading, lr, skip)

    def versions_read(self, subnet: int) -> list[LayerVersion]:
        """Return block, layer and version of everything that a subnet in flight has read."""
        readings = self._subnets[subnet].readings
        return [(layer.spec.block, layer.spec.name, r.version) for block in readings for layer, r in block]

    def versions_to_update(self, subnet: int) -> list[LayerVersion]:
        """Return block, layer and version of everything that a subnet's update changes, at once or in its turn."""
        readings = self._subnets[subnet].readings
        return [(layer.spec.block, layer.spec.name, layer.version) for block in readings for layer, _ in block]

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
def _reading(readings: _Snapshots) -> Iterator[None]:
    """Let a block's layers use the tensors that a subnet reads, as ``torch.func.functional_call`` does.

    That finds each parameter anew by its path, which took 3 % of a training; layers know where theirs are.
    """
    for layer, reading in readings:
        for (module, name), tensor in zip(layer.slots, reading.tensors.values(), strict=True):
            module._parameters[name] = tensor  # type: ignore[assignment]  # a leaf that shares a parameter's storage
    try:
        yield
    finally:
        for layer, _ in readings:
            for (module, name), parameter in zip(layer.slots, layer.spec.parameters.values(), strict=True):
                module._parameters[name] = parameter


def _run_without_graph(run: Callable[[Any], Any], payload: Any) -> Any:
    """Run something between two boundaries and keep nothing; what would need a gradient is marked so."""
    # The graph is built and dropped at once: only so is it known which outputs need a gradient.
    with torch.enable_grad():
        x, _ = enter_block(payload)
        return detach_payload(run(x))


def _record(run: Callable[[Any], Any], payload: Any, tapes: list[_Tape | _Script]) -> Any:
    """Run something between two boundaries and keep what its backward needs."""
    with torch.enable_grad():
        x, inputs = enter_block(payload)
        output = run(x)
    tapes.append(_Tape(inputs, leave_block(output)))
    return output


def _ones(tape: _Tape) -> Slots:
    return [torch.ones_like(output) if output is not None else None for output in tape.outputs]
