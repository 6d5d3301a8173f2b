"""A part: runs actions on its blocks and keeps what the backward needs, no longer than it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from naspipe.keys import derive_key
from naspipe.space import Architecture
from naspipe.supernet.block import Block
from naspipe.training.boundary import Slots, backward_block, enter_block, leave_block
from naspipe.training.determinism import seed_generators
from naspipe.training.layers import Layer, Reading


@dataclass(frozen=True)
class _Tape:
    """What one block's backward needs: where gradients enter it, and where they come out."""

    inputs: Slots
    outputs: Slots


@dataclass
class _InFlight:
    """A subnet between its first forward and its update."""

    architecture: Architecture
    readings: list[list[tuple[Layer, Reading]]] = field(default_factory=list)
    tapes: dict[int, list[_Tape]] = field(default_factory=dict)


class Part:
    """A contiguous run of blocks on one device: a stage, or one of its segments."""

    def __init__(
        self, blocks: Sequence[Block], layers: Sequence[dict[str, Layer]], first_block: int, seed: int
    ) -> None:
        """Take charge of blocks.

        Args:
            blocks: The blocks, in order.
            layers: For every block its layers by name.
            first_block: Index of the first of them in the supernet.
            seed: The run's seed, which keys the draws within blocks (dropout).
        """
        self._blocks = blocks
        self._layers = layers
        self._first_block = first_block
        self._seed = seed
        self._subnets: dict[int, _InFlight] = {}

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
        for index, block in enumerate(self._blocks):
            tensors: dict[str, Tensor] = {}
            for _, reading in state.readings[index]:
                tensors.update(reading.tensors)
            seed_generators(derive_key(self._seed, "block", subnet, microbatch, self._first_block + index))

            def run(x: Any, block: Block = block, tensors: dict[str, Tensor] = tensors) -> Any:
                # Tied weights are refused when the supernet is built, so there are none to look for.
                arguments = (x, architecture)
                return functional_call(block, tensors, arguments, tie_weights=False)

            payload = _record(run, payload, tapes)
        return payload

    def loss(self, subnet: int, microbatch: int, payload: Any, loss: Callable[[Any], Tensor]) -> Tensor:
        """Compute the loss of a unit from the last block's output; it is a boundary like any other.

        Returns:
            The loss, without its graph.
        """
        return _record(loss, payload, self._subnets[subnet].tapes[microbatch]).detach()  # type: ignore[no-any-return]

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
        flowing: Sequence[Tensor | None] = gradients if gradients is not None else _ones(tapes[-1])
        while tapes:
            tape = tapes.pop()
            flowing = backward_block(tape.outputs, flowing, tape.inputs)
        return list(flowing)

    def update(self, subnet: int, lr: float) -> None:
        """Update every layer that a subnet used, in the order of blocks, and forget the subnet."""
        for block in self._subnets.pop(subnet).readings:
            for layer, reading in block:
                layer.update(subnet, reading, lr)


def _record(run: Callable[[Any], Any], payload: Any, tapes: list[_Tape]) -> Any:
    """Run something between two boundaries and keep what its backward needs."""
    with torch.enable_grad():
        x, inputs = enter_block(payload)
        output = run(x)
    tapes.append(_Tape(inputs, leave_block(output)))
    return output


def _ones(tape: _Tape) -> Slots:
    return [torch.ones_like(output) if output is not None else None for output in tape.outputs]
