"""The check of options: each is tried once, to see that blocks fit each other and use the layers that they name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from naspipe.errors import SpaceError, TaskError
from naspipe.keys import derive_key, keyed_random
from naspipe.space import Architecture
from naspipe.space.covering import covering_architectures
from naspipe.supernet.block import Block, ChoiceBlock
from naspipe.supernet.determinism import seed_generators
from naspipe.supernet.meta import to_meta
from naspipe.supernet.supernet import Supernet
from naspipe.tasks.data import Batch
from naspipe.training.tensor_spec import PayloadSpec, TensorSpec, spec_of
from naspipe.usercode import calling, user_traceback

MAX_TRAINED = 16
"""Number of architectures that run forward and backward on real numbers; the others run on the meta device only."""

Loss = Callable[[Any, Any], Tensor]


def check_options(supernet: Supernet, meta: Supernet, batch: Batch, loss: Loss, seed: int) -> None:
    """Run architectures in which every option of every decision occurs.

    Args:
        supernet: The supernet, on the CPU; it is left as it is.
        meta: The same supernet on the meta device.
        batch: A few samples.
        loss: The task's loss.
        seed: The run's seed.

    Raises:
        SpaceError: A block fails on the output of the block before, changes a buffer, or uses a layer that it does not
            name; or a backward fails.
        TaskError: The loss fails.
    """
    seen: list[dict[str, PayloadSpec]] = [{} for _ in supernet]
    on_meta = to_meta(batch.inputs)
    meta_works = True
    for count, architecture in enumerate(covering_architectures(supernet.space, keyed_random(seed, "candidates"))):
        if count < MAX_TRAINED or not meta_works:
            seed_generators(derive_key(seed, "candidates", count))
            _train(supernet, architecture, batch, loss, seen)
            continue
        try:
            with torch.no_grad():
                _forward(meta, architecture, on_meta, seen)
        except SpaceError:
            # A block may need values of tensors, which the meta device does not have.
            meta_works = False
            _train(supernet, architecture, batch, loss, seen)


def find_misfit(supernet: Supernet, batch: Batch, seed: int) -> SpaceError | None:
    """Return an error if the next block fails because two options of a block return different shapes.

    Args:
        supernet: The supernet, on the CPU; it is left as it is.
        batch: A few samples.
        seed: The run's seed.
    """
    seen: list[dict[str, PayloadSpec]] = [{} for _ in supernet]
    failures = []
    with torch.no_grad():
        for architecture in covering_architectures(supernet.space, keyed_random(seed, "candidates")):
            try:
                _forward(supernet, architecture, batch.inputs, seen)
            except SpaceError as error:
                failures.append((architecture, error))
    # Now the shapes that every option returns are known.
    for architecture, _ in failures:
        try:
            _forward(supernet, architecture, batch.inputs, seen)
        except _MisfitError as error:
            return error
        except SpaceError:
            continue
    return None


class _MisfitError(SpaceError):
    """Two options of a block return different shapes, and the next block takes only one of them."""


def _forward(supernet: Supernet, architecture: Architecture, payload: Any, seen: list[dict[str, PayloadSpec]]) -> Any:
    """Run all blocks, and note the payload spec that each returns for each option."""
    for index, block in enumerate(supernet):
        received = spec_of(payload)
        try:
            payload = block(payload, architecture)
        except Exception as error:
            raise _failure(supernet, architecture, index, received, seen, error) from error
        seen[index].setdefault(_choice(block, architecture), spec_of(payload))
    return payload


def _failure(
    supernet: Supernet,
    architecture: Architecture,
    index: int,
    received: PayloadSpec,
    seen: list[dict[str, PayloadSpec]],
    error: Exception,
) -> SpaceError:
    """Return an error that names the options that do not fit each other."""
    kind = SpaceError
    blocks = list(supernet)
    here = f"block {index} ({_choice(blocks[index], architecture)})"
    text = f"{here} fails on the batch's input, {_describe(received)}"
    if index:
        before = _choice(blocks[index - 1], architecture)
        text = f"{here} fails on what block {index - 1} ({before}) returns, {_describe(received)}"
        for choice, other in seen[index - 1].items():
            if _shapes(other) != _shapes(received):
                text += f"; {choice} returns {_describe(other)}"
                kind = _MisfitError
                break
    name = type(supernet.space).__name__
    return kind(
        f"every option of a block must return what every option of the next block takes, but in {name}, {text}. "
        f"The architecture is {supernet.space.format(architecture)}.\n{user_traceback(error)}"
    )


def _train(
    supernet: Supernet, architecture: Architecture, batch: Batch, loss: Loss, seen: list[dict[str, PayloadSpec]]
) -> None:
    """Run an architecture forward and backward, and check which parameters and buffers it changed."""
    before = {name: buffer.clone() for name, buffer in supernet.named_buffers()}
    outputs = _forward(supernet.train(), architecture, batch.inputs, seen)
    text = supernet.space.format(architecture)
    with calling(f"the loss of architecture {text}", TaskError):
        value = loss(outputs, batch.targets)
    with calling(f"the backward of architecture {text}", SpaceError):
        if value.requires_grad:
            value.backward()  # type: ignore[no-untyped-call]  # torch leaves it so
    used = {(layer.block, layer.name) for row in supernet.used_layers(architecture) for layer in row}
    try:
        for layer in supernet.layers():
            for path, parameter in layer.parameters.items():
                if parameter.grad is not None and (layer.block, layer.name) not in used:
                    raise SpaceError(
                        f"a block must use only the layers that its used_layers names, but with "
                        f"{text}, parameter {path!r} of {layer} got a gradient."
                    )
        for name, buffer in supernet.named_buffers():
            if not torch.equal(buffer, before[name]):
                raise SpaceError(
                    f"a block must change nothing in its forward, but buffer {name.removeprefix('blocks.')!r} (block "
                    "and name) changes. Results would depend on the order of subnets: keep no running state."
                )
    finally:
        supernet.zero_grad()


def _choice(block: Block, architecture: Architecture) -> str:
    """Return the option of an architecture in a block, for people."""
    if isinstance(block, ChoiceBlock) and block.decision in architecture:
        return f"{block.decision}={architecture[block.decision]}"
    return type(block).__name__


def _shapes(spec: PayloadSpec) -> list[Any]:
    return [slot.shape if isinstance(slot, TensorSpec) else slot for slot in spec.slots]


def _describe(spec: PayloadSpec) -> str:
    return ", ".join(f"shape {shape}" if isinstance(shape, tuple) else repr(shape) for shape in _shapes(spec))
