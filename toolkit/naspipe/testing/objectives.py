"""The checks of an objective that is a measure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import get_args

from torch import nn

from naspipe.errors import SpaceError
from naspipe.files import digest_tensors
from naspipe.keys import keyed_random
from naspipe.records import Direction
from naspipe.search.measure import Measure, Subnet, measure_subnet
from naspipe.supernet.supernet import build_subnet
from naspipe.testing.check import CheckList, NotApplicableError, require
from naspipe.testing.passes import as_in_training
from naspipe.testing.subject import SEED, Subject, as_subject
from naspipe.testing.watching import global_generators_untouched, kept_generators, stir_generators
from naspipe.usercode import calling

ARCHITECTURES = 5
"""Number of architectures that are measured."""

DEFAULT_SPACE = "nasbench201"
"""The default space of the measured architectures."""

checks = CheckList(as_in_training)


def subnets(subject: Subject) -> Iterator[Subnet]:
    """Yield new subnets, of the same architectures in every call."""
    space = (subject.space_subject or as_subject(DEFAULT_SPACE, "space")).make()
    dataset = subject.loaded[1].validation
    for number in range(ARCHITECTURES):
        architecture = space.random_architecture(keyed_random(SEED, "objective", number))
        with calling(f"building {space.format(architecture)}", SpaceError):
            module = build_subnet(space, architecture, SEED)
        yield Subnet(space, architecture, lambda module=module: module, dataset)  # type: ignore[misc]  # bound now


def _state(module: nn.Module) -> tuple[str, bool]:
    return digest_tensors(module.state_dict()), module.training


@checks()
def it_says_which_way_is_better(subject: Subject) -> None:
    """Its direction is maximize or minimize."""
    direction = getattr(subject.make(), "direction", None)
    require(direction in get_args(Direction), f"direction must be 'maximize' or 'minimize', but is {direction!r}.")


@checks()
def it_gives_a_finite_number(subject: Subject) -> None:
    """Every architecture has a finite number."""
    measure: Measure = subject.make()
    for subnet in subnets(subject):
        require(
            all(math.isfinite(value) for value in measure_subnet("it", measure, subnet).values()),
            "numbers must be finite.",
        )


@checks("it_gives_a_finite_number")
def it_leaves_the_module_as_it_was(subject: Subject) -> None:
    """Measuring changes no weight, buffer or mode of the module."""
    measure: Measure = subject.make()
    for subnet in subnets(subject):
        before = _state(subnet.module)
        measure.measure(subnet)
        require(
            _state(subnet.module) == before,
            "measure must leave the module as it is, but its weights, buffers or mode have changed. Work on a copy.",
        )


@checks("it_gives_a_finite_number")
def it_is_a_function_of_the_candidate(subject: Subject) -> None:
    """The number depends only on the subnet, not on earlier measurements or global generators."""
    if subject.make().timed:
        raise NotApplicableError("the measure is timed, so it depends on the clock")
    first: Measure = subject.make()
    with kept_generators():
        stir_generators(1)
        with global_generators_untouched("measure"):
            expected = [measure_subnet("it", first, subnet) for subnet in subnets(subject)]
        stir_generators(2)
        for measure in (first, subject.make()):
            again = [measure_subnet("it", measure, subnet) for subnet in reversed(list(subnets(subject)))]
            require(
                again == expected[::-1],
                "measure must be a function of the subnet alone, or have timed = True, but in another order it "
                f"gives {again!r} instead of {expected[::-1]!r}.",
            )
