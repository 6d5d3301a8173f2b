"""The checks of a search space: its layers, and the subnets that are extracted from its supernet."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from naspipe.files import digest_tensors
from naspipe.space import Architecture
from naspipe.supernet.supernet import LayerParameters, Supernet, build_subnet
from naspipe.testing.check import CheckList, ConformanceError, require
from naspipe.testing.passes import as_in_training, batch_input, build, run_module, run_straight
from naspipe.testing.pure_spaces import telling_architectures
from naspipe.testing.subject import SEED, Subject
from naspipe.testing.watching import changes, global_generators_untouched, kept_generators, stir_generators
from naspipe.usercode import calling

MOST = 24
"""Architectures that are run to check the declared layers; fewer if every option occurs in them."""

FEW = 6
"""Architectures that are run for expensive comparisons."""

checks = CheckList(as_in_training)


@checks("random_architectures_are_valid")
def a_batch_passes_forward_and_backward(subject: Subject) -> None:
    """A batch of the task passes every kind of architecture forward and backward, and stays finite."""
    supernet = build(subject)
    inputs = batch_input(subject)
    task = subject.task_subject.cls.__name__
    for architecture in telling_architectures(supernet.space, MOST):
        name = supernet.space.format(architecture)
        what = f"the space must fit the task {task} (give the one it is for), but a batch of it in {name}"
        with calling(what, ConformanceError):
            result = run_straight(supernet, inputs, architecture)
        require(bool(result.outputs), f"the last block must return tensors, but in {name} it returns none.")
        for slot, tensor in result.outputs.items():
            finite = not tensor.is_floating_point() or bool(tensor.isfinite().all())
            require(finite, f"outputs must be finite, but {slot} of {name} is not.")


@checks("a_batch_passes_forward_and_backward")
def forward_writes_no_state(subject: Subject) -> None:
    """A forward changes no parameter, buffer or attribute outside the strict layers that it names."""
    inputs = batch_input(subject)
    supernet = build(subject)
    for architecture in telling_architectures(supernet.space, FEW):
        # Only the blocks, since the space may not be copyable.
        before = copy.deepcopy(supernet.blocks)
        run_straight(supernet, inputs, architecture)
        allowed = {
            id(module)
            for block in supernet
            for name in block.used_layers(architecture)
            for module in block.layers()[name].modules()
        }
        olds = dict(before.named_modules())
        for path, module in supernet.blocks.named_modules():
            if id(module) in allowed:
                continue
            for place in changes(_state(olds[path]), _state(module)):
                raise ConformanceError(
                    f"forward must write no state, but in {supernet.space.format(architecture)} it changes "
                    f"{place.strip('[]')} of block {path} ({type(module).__name__}). Several subnets are trained at "
                    "once, and blocks may run twice: pass the value in the payload, or compute it in __init__."
                )


def _state(module: nn.Module) -> dict[str, Any]:
    """Return all attributes and tensors of a module, without its submodules."""
    own = {name: value for name, value in vars(module).items() if not name.endswith("_hooks")}
    tensors = {**own.pop("_parameters"), **own.pop("_buffers")}
    children = list(own.pop("_modules"))
    if isinstance(module, GraphModule):
        del own["_graph"]  # A copy gets a new graph.
    return {**own, **{name: _bare(tensor) for name, tensor in tensors.items()}, "the submodules": children}


def _bare(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()


@checks("a_batch_passes_forward_and_backward", "forward_writes_no_state")
def running_again_gives_the_same(subject: Subject) -> None:
    """Two passes with one key give the same bits, and use no global generator except torch's, which is seeded."""
    supernet = build(subject)
    inputs = batch_input(subject)
    for architecture in telling_architectures(supernet.space, FEW):
        with kept_generators():
            stir_generators(1)
            with global_generators_untouched("forward", torch_too=False):
                one = run_straight(supernet, inputs, architecture)
            stir_generators(2)
            difference = one.difference(run_straight(supernet, inputs, architecture))
        require(
            not difference,
            "two passes with one key must give the same bits, but in "
            f"{supernet.space.format(architecture)} {difference}.",
        )


@checks("a_batch_passes_forward_and_backward")
def declared_layers_are_the_trained_ones(subject: Subject) -> None:
    """A forward uses exactly the layers that used_layers names, and some architecture trains each parameter."""
    supernet = build(subject)
    inputs = batch_input(subject)
    layers = supernet.layers()
    trained: set[tuple[int, str, str]] = set()
    drawn = telling_architectures(supernet.space, MOST)
    for architecture in drawn:
        name = supernet.space.format(architecture)
        used = {(layer.block, layer.name) for row in supernet.used_layers(architecture) for layer in row}
        with _watched(supernet, layers) as ran:
            gradients = _gradients(supernet, inputs, architecture)
        for layer in layers:
            key = (layer.block, layer.name)
            got = gradients.get(key, set())
            trained |= {(*key, path) for path in got}
            kind = type(list(supernet)[layer.block]).__name__
            if (got or key in ran) and key not in used:
                raise ConformanceError(
                    f"forward must use only the layers that used_layers names, but in {name} it uses {layer} "
                    f"({kind}), which is not named. Name it, or do not use it."
                )
            if layer.strict and key in used and not got and key not in ran:
                raise ConformanceError(
                    f"used_layers must name only layers that forward uses, but in {name} it names {layer} ({kind}), "
                    "which is neither run nor trained. Subnets that name the same layer wait for each other."
                )
    seen = {(block, name) for block, name, _ in trained}
    for layer in layers:
        for path, parameter in layer.parameters.items():
            key = (layer.block, layer.name)
            if parameter.requires_grad and (*key, path) not in trained and (key in seen or not layer.strict):
                raise ConformanceError(
                    f"every parameter must be trained by some architecture, but {path!r} of {layer} gets no gradient "
                    f"in any of {len(drawn)}. Remove it, or set its requires_grad to False."
                )


def _gradients(supernet: Supernet, inputs: Any, architecture: Architecture) -> dict[tuple[int, str], set[str]]:
    """Return for every layer the parameters that got a gradient."""
    got = run_straight(supernet, inputs, architecture).gradients
    found: dict[tuple[int, str], set[str]] = {}
    for layer in supernet.layers():
        paths = {path for path in layer.parameters if f"blocks.{layer.block}.{path}" in got}
        if paths:
            found[layer.block, layer.name] = paths
    return found


@contextlib.contextmanager
def _watched(supernet: Supernet, layers: list[LayerParameters]) -> Iterator[set[tuple[int, str]]]:
    """Yield a set to which every strict layer is added whose module runs in this context."""
    ran: set[tuple[int, str]] = set()
    handles = []
    blocks = list(supernet)
    for layer in layers:
        if not layer.strict:
            continue

        def note(*_: object, key: tuple[int, str] = (layer.block, layer.name)) -> None:
            ran.add(key)

        handles.append(blocks[layer.block].layers()[layer.name].register_forward_hook(note))
    try:
        yield ran
    finally:
        for handle in handles:
            handle.remove()


@checks("declared_layers_are_the_trained_ones", "running_again_gives_the_same")
def other_layers_do_not_matter(subject: Subject) -> None:
    """The bits of an architecture do not depend on the layers that it does not name."""
    supernet = build(subject)
    inputs = batch_input(subject)
    for architecture in telling_architectures(supernet.space, FEW):
        expected = run_straight(supernet, inputs, architecture)
        used = {(layer.block, layer.name) for row in supernet.used_layers(architecture) for layer in row}
        others = [layer for layer in supernet.layers() if (layer.block, layer.name) not in used]
        kept = [(p, p.detach().clone()) for layer in others for p in layer.parameters.values()]
        with torch.no_grad():
            for parameter, _ in kept:
                parameter.fill_(float("nan") if parameter.is_floating_point() else 1)
        difference = expected.difference(run_straight(supernet, inputs, architecture))
        with torch.no_grad():
            for parameter, value in kept:
                parameter.copy_(value)
        require(
            not difference,
            f"layers that used_layers does not name must not matter, but {supernet.space.format(architecture)} changes "
            f"with them: {difference}. Training of several subnets at once would then change results.",
        )


@checks("other_layers_do_not_matter")
def an_extracted_subnet_is_the_supernets_path(subject: Subject) -> None:
    """An extracted subnet has exactly the used parameters, and gives the supernet's bits, forward and backward."""
    supernet = build(subject)
    inputs = batch_input(subject)
    for architecture in telling_architectures(supernet.space, FEW):
        name = supernet.space.format(architecture)
        subnet = supernet.extract(architecture).train()
        found, expected = sum(p.numel() for p in subnet.parameters()), supernet.num_parameters(architecture)
        require(
            found == expected,
            f"an extracted subnet must have the parameters of the layers that used_layers names, {expected}, but "
            f"{name} has {found}.",
        )
        one = run_module(supernet, functools.partial(supernet, architecture=architecture), inputs)
        other = run_module(subnet, subnet, inputs)
        for slot in {**one.outputs, **other.outputs}:
            same = slot in one.outputs and slot in other.outputs
            require(
                same and digest_tensors({"": one.outputs[slot]}) == digest_tensors({"": other.outputs[slot]}),
                f"an extracted subnet must compute the supernet's bits, but {slot} of {name} differs.",
            )
        # The paths of parameters differ, so only the gradients are compared.
        require(
            _digests(one.gradients) == _digests(other.gradients),
            f"an extracted subnet must get the supernet's gradients, but those of {name} differ.",
        )


def _digests(gradients: dict[str, Tensor]) -> Counter[str]:
    return Counter(digest_tensors({"": gradient}) for gradient in gradients.values())


@checks("random_architectures_are_valid")
def a_fresh_subnet_has_the_same_form(subject: Subject) -> None:
    """A subnet with fresh weights has the state-dict keys and shapes of the extracted one."""
    supernet = build(subject)
    for architecture in telling_architectures(supernet.space, FEW):
        extracted = _shapes(supernet.extract(architecture))
        new = _shapes(build_subnet(subject.make(), architecture, SEED))
        for key in {**extracted, **new}:
            require(
                extracted.get(key) == new.get(key),
                f"a new subnet must have the shapes of an extracted one, but in {supernet.space.format(architecture)} "
                f"{key!r} is {new.get(key, 'missing')} in the new one and {extracted.get(key, 'missing')} in the "
                "other.",
            )


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {key: tuple(tensor.shape) for key, tensor in module.state_dict().items()}
