"""The checks of a search space: equal results in every run, in every process, and on any number of stages."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from naspipe.errors import ConfigError
from naspipe.files import digest_tensors
from naspipe.space import Architecture
from naspipe.supernet.determinism import seed_generators
from naspipe.supernet.meta import build_on_meta, to_meta
from naspipe.supernet.supernet import Supernet
from naspipe.testing.check import CheckList, ConformanceError, NotApplicableError, require
from naspipe.testing.elsewhere import ask_elsewhere
from naspipe.testing.passes import Pass, as_in_training, batch_input, build, fresh, run_straight, run_with_boundaries
from naspipe.testing.pure_spaces import some_architectures, telling_architectures
from naspipe.testing.space_layers import FEW
from naspipe.testing.subject import SEED, Subject
from naspipe.testing.watching import global_generators_untouched, kept_generators, stir_generators
from naspipe.training.boundary import enter_block
from naspipe.training.context import RunContext
from naspipe.training.tensor_spec import spec_of
from naspipe.usercode import calling
from naspipe.verification.equality import verify

SUBNETS = 8
"""Subnets in each training of the check of pipelines."""

RELATIVE, ABSOLUTE = 1e-3, 1e-5
"""Tolerances of a boundary, relative to each number and to the largest number of a tensor. A boundary makes strides
contiguous, and sums the gradients of aliased tensors separately, so kernels may sum in another order."""

checks = CheckList(as_in_training)


@checks("random_architectures_are_valid")
def building_again_gives_the_same(subject: Subject) -> None:
    """Two supernets with one seed have the same layers with the same bits; global generators have no effect."""
    with kept_generators():
        stir_generators(1)
        with global_generators_untouched("__init__ and blocks()", torch_too=False):
            one = build(subject)
        stir_generators(2)
        two = build(subject)
    expected, found = _weights(one), _weights(two)
    for key in {**expected, **found}:
        require(
            expected.get(key) == found.get(key),
            f"two supernets with one seed must be equal, but {key!r} differs. Initialise by torch.nn.init, which draws "
            "from torch's generator, and this is seeded for each block.",
        )


def _weights(supernet: Supernet) -> dict[str, str]:
    return {key: digest_tensors({"": tensor}) for key, tensor in supernet.state_dict().items()}


@checks("running_again_gives_the_same")
def boundaries_change_nothing(subject: Subject) -> None:
    """With a boundary between all blocks, as in training, a pass gives the same results, up to the order of sums."""
    supernet = build(subject)
    inputs = batch_input(subject)
    for architecture in telling_architectures(supernet.space, FEW):
        straight = run_straight(supernet, inputs, architecture)
        with calling(f"{supernet.space.format(architecture)}, with boundaries between its blocks,", ConformanceError):
            separated = run_with_boundaries(supernet, inputs, architecture)
        place = _differs(straight, separated)
        require(
            not place,
            f"boundaries between blocks must change nothing, but in {supernet.space.format(architecture)} {place}. "
            "Everything that a block needs from another one must be in the payload, a nest of tensors.",
        )


def _differs(one: Pass, other: Pass) -> str:
    for what, first, second in (
        ("output", one.outputs, other.outputs),
        ("the gradient of", one.gradients, other.gradients),
    ):
        for name in {**first, **second}:
            if name not in first or name not in second:
                return f"{what} {name} exists {'only with' if name in second else 'only without'} boundaries"
            a, b = first[name], second[name]
            if a.shape != b.shape or a.dtype != b.dtype:
                return f"{what} {name} has another shape or dtype"
            if not a.is_floating_point():
                if not torch.equal(a, b):
                    return f"{what} {name} differs"
                continue
            largest = float(a.abs().max()) if a.numel() else 0.0
            if not torch.allclose(a, b, RELATIVE, ABSOLUTE * max(largest, 1e-3), equal_nan=True):
                return f"{what} {name} differs by up to {float((a - b).abs().max()):.3g}"
    return ""


@checks("running_again_gives_the_same")
def architectures_of_a_variant_have_one_form(subject: Subject) -> None:
    """Architectures of one variant of a block give outputs of one tensor spec for inputs of one tensor spec."""
    supernet = build(subject)
    inputs = batch_input(subject)
    known: dict[Hashable, tuple[Hashable, Architecture]] = {}
    space = supernet.space
    for architecture in [*telling_architectures(space, FEW), *some_architectures(space, 3 * FEW)]:
        for index, (entered, left) in enumerate(_specs(supernet, inputs, architecture)):
            key = (index, list(supernet)[index].variant(architecture), entered)
            spec, first = known.setdefault(key, (left, architecture))
            require(
                spec == left,
                f"architectures of one variant must give outputs of one tensor spec, but block {index} "
                f"({type(list(supernet)[index]).__name__}) gives {_text(spec)} in {space.format(first)} and "
                f"{_text(left)} in {space.format(architecture)}. variant() must return all that the spec depends on.",
            )


def _specs(supernet: Supernet, inputs: Any, architecture: Architecture) -> list[tuple[Hashable, Hashable]]:
    """Return for every block the payload specs of its input and its output."""
    payload, specs = fresh(inputs), []
    for block in supernet:
        x, _ = enter_block(payload)
        entered = spec_of(x).key
        seed_generators(SEED)
        payload = block(x, architecture)
        specs.append((entered, spec_of(payload).key))
    return specs


def _text(spec: Any) -> str:
    slots = [str(tuple(slot.shape)) if hasattr(slot, "shape") else str(slot) for slot in spec[1]]
    return f"shapes {', '.join(slots)}"


@checks("architectures_of_a_variant_have_one_form")
def the_meta_device_knows_every_form(subject: Subject) -> None:
    """On the meta device the supernet can be built and run, and every block's output has its real tensor spec."""
    supernet = build(subject)
    meta = build_on_meta(subject.make(), SEED).train()
    inputs = batch_input(subject)
    for architecture in telling_architectures(supernet.space, FEW):
        name = supernet.space.format(architecture)
        try:
            found = _specs(meta, to_meta(inputs), architecture)
        except Exception as error:
            raise ConformanceError(
                f"blocks must run on the meta device, where tensors have no values, but {name} raises "
                f"{type(error).__name__}: {error}. Make new tensors on the device of the input, and do not read "
                "values: pipelines between processes and costs in FLOPs need the meta device."
            ) from error
        for index, (real, known) in enumerate(zip(_specs(supernet, inputs, architecture), found, strict=True)):
            require(
                real[1] == known[1],
                f"a tensor spec must not depend on values, but in {name} block {index} returns {_text(real[1])}, and "
                f"on the meta device {_text(known[1])}.",
            )


def fingerprint(subject: Subject) -> dict[str, Any]:
    """Return values that must be equal in all processes."""
    with as_in_training():
        supernet = build(subject)
        space, inputs = supernet.space, batch_input(subject)
        drawn = some_architectures(space, FEW)
        return {
            "the decisions": [f"{decision.name}: {list(decision.options)!r}" for decision in space.decisions],
            "the random architectures": [architecture.to_json() for architecture in drawn],
            "the texts of architectures": [space.format(architecture) for architecture in drawn],
            "the layers": [str(layer) for layer in supernet.layers()],
            "the weights": sorted(_weights(supernet).items()),
            "the layers that architectures use": [
                [[layer.name for layer in row] for row in supernet.used_layers(architecture)] for architecture in drawn
            ],
            "the outputs": [
                [digest_tensors({"": tensor}) for tensor in run_straight(supernet, inputs, a).outputs.values()]
                for a in drawn
            ],
        }


@checks("building_again_gives_the_same", "running_again_gives_the_same")
def another_process_gives_the_same(subject: Subject) -> None:
    """Another process, with another hash seed, finds the space and gives equal results."""
    here, there = fingerprint(subject), ask_elsewhere(fingerprint, subject)
    for what, expected in here.items():
        found = there[what]
        # JSON turns tuples into lists.
        same = [list(e) if isinstance(e, tuple) else e for e in expected] == found
        require(
            same,
            f"all processes must get equal results, but {what} differ in another one. Do they depend on the order of a "
            "set, on hash(), on the environment or on a clock?",
        )


@checks(
    "declared_layers_are_the_trained_ones", "other_layers_do_not_matter", "boundaries_change_nothing",
    "building_again_gives_the_same", "architectures_of_a_variant_have_one_form",
)  # fmt: skip
def pipelines_give_the_bits_of_one_stage(subject: Subject) -> None:
    """Supernet training by csp on 2 and 3 stages gives the bits of sequential training on one."""
    blocks = len(build(subject))
    if blocks == 1:
        raise NotApplicableError("there is one block only, so it cannot be distributed over stages")
    task, splits = subject.loaded
    samples = len(splits.train)
    batch = min(8, samples)
    config = {
        "seed": SEED,
        "space": subject.section,
        "task": subject.task_subject.section,
        "training": {
            "subnets": SUBNETS,
            "batch_size": batch,
            "microbatches": 2 if batch >= 4 and samples % batch != 1 else 1,
            "delay": 2,
            "optimizer": {"name": "SGD", "lr": 0.001, "momentum": 0.9},
        },
        "search": {"strategy": {"name": "random"}, "objectives": [*task.directions, "parameters"][:1]},
    }
    try:
        stages = [count for count in (2, 3) if count <= blocks]
        found = list(verify(RunContext.load(config), ["csp"], stages, ["in-process"]))
    except ConfigError as error:
        raise ConformanceError(f"a configuration with the space must be valid, but: {error}") from error
    for check in found:
        where = f"{check.executor} on {check.stages} stages"
        require(not check.difference, f"{where} must give the bits of one stage, but: {check.difference}.")
        for violation in check.violations:
            raise ConformanceError(f"{where} must keep its contract, but: {violation.message}")
