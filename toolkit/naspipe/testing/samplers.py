"""The checks of a sampler."""

from __future__ import annotations

import json
from collections.abc import Iterator

from naspipe.errors import InputError
from naspipe.space import Architecture, SearchSpace
from naspipe.space.sampler import Sampler
from naspipe.testing.check import CheckList, ConformanceError, require
from naspipe.testing.elsewhere import ask_elsewhere
from naspipe.testing.pure_spaces import spaces_for
from naspipe.testing.subject import SEED, Subject
from naspipe.testing.watching import global_generators_untouched, kept_generators, stir_generators

DRAWS = 60
"""Number of subnets that are drawn from each space."""

checks = CheckList()


def started(subject: Subject, seed: int = SEED) -> Iterator[tuple[Sampler, SearchSpace]]:
    """Yield samplers, each started on one of the spaces that the sampler accepts.

    Raises:
        ConformanceError: It accepts no space.
    """
    refusals = []
    for space in spaces_for(subject):
        sampler = subject.make()
        try:
            sampler.start(space, seed)
        except InputError as error:
            refusals.append(f"{type(space).__name__}: {error}")
            continue
        yield sampler, space
    if len(refusals) == len(list(spaces_for(subject))):
        raise ConformanceError(
            f"start must accept some space, but refused all {len(refusals)}, the first for this reason: {refusals[0]} "
            "Give parameters that fit, or a space that fits."
        )


def draw(sampler: Sampler, count: int = DRAWS, first: int = 0) -> list[Architecture]:
    """Return the next draws."""
    return [sampler.draw(index) for index in range(first, first + count)]


def _compare(expected: list[Architecture], found: list[Architecture], space: SearchSpace, what: str) -> None:
    for index, (one, other) in enumerate(zip(expected, found, strict=True)):
        require(
            one == other,
            f"{what}, but on {type(space).__name__} draw({index}) gives {dict(other)!r} instead of {dict(one)!r}. "
            "Draws must be a function of space, seed, index and earlier draws.",
        )


@checks()
def draws_are_architectures_of_the_space(subject: Subject) -> None:
    """Every draw is a valid architecture of the space, also with conditional decisions and validity rules."""
    for sampler, space in started(subject):
        for index, drawn in enumerate(draw(sampler)):
            where = f"on {type(space).__name__}, draw({index}) must return an architecture of the space"
            require(isinstance(drawn, Architecture), f"{where}, but returned {drawn!r} of type {type(drawn).__name__}.")
            try:
                checked = space.architecture(drawn)
            except InputError as error:
                raise ConformanceError(f"{where}, but: {error}") from error
            require(checked == drawn, f"{where}, with its decisions in order, but returned {drawn!r}.")


@checks("draws_are_architectures_of_the_space")
def the_same_seed_draws_the_same(subject: Subject) -> None:
    """Two samplers with one seed draw the same, and so does a sampler that is started again."""
    for sampler, space in started(subject):
        drawn = draw(sampler)
        other: Sampler = subject.make()
        other.start(space, SEED)
        _compare(drawn, draw(other), space, "two samplers with one seed must draw the same")
        other.start(space, SEED)
        _compare(drawn, draw(other), space, "a sampler that is started again must draw what it drew before")


@checks("the_same_seed_draws_the_same")
def samplers_do_not_disturb_each_other(subject: Subject) -> None:
    """A sampler draws the same if another one draws in between."""
    others = {type(space): other for other, space in started(subject, SEED + 1)}
    alone = {type(space): draw(sampler) for sampler, space in started(subject)}
    for sampler, space in started(subject):
        if type(space) not in others:
            continue  # Refused with this seed.
        found = []
        for index in range(DRAWS):
            others[type(space)].draw(index)
            found.append(sampler.draw(index))
        _compare(alone[type(space)], found, space, "a sampler must share no state with another one")


@checks("the_same_seed_draws_the_same")
def no_global_generator_is_used(subject: Subject) -> None:
    """Neither start nor draw uses a global generator, and draws do not depend on its state."""
    with kept_generators():
        stir_generators(1)
        with global_generators_untouched("start and draw"):
            first = {type(space): draw(sampler) for sampler, space in started(subject)}
        stir_generators(2)
        for sampler, space in started(subject):
            _compare(first[type(space)], draw(sampler), space, "draws must not depend on global generators")


@checks("the_same_seed_draws_the_same")
def state_and_restore_go_on(subject: Subject) -> None:
    """A new sampler that restores the state after draw(i), as JSON, continues with draw(i + 1)."""
    for count in (1, 7):
        fresh = {type(space): sampler for sampler, space in started(subject)}
        for sampler, space in started(subject):
            draw(sampler, count)
            state = sampler.state()
            try:
                text = json.dumps(state)
            except (TypeError, ValueError) as error:
                raise ConformanceError(
                    f"state() must return a value that JSON can hold, but returned {state!r}: {error}."
                ) from error
            expected = draw(sampler, 20, count)
            other = fresh[type(space)]
            try:
                other.restore(json.loads(text))
            except AssertionError as error:
                raise ConformanceError(
                    f"a sampler whose state() is not empty must implement restore: {error}."
                ) from error
            for index, (one, two) in enumerate(zip(expected, draw(other, 20, count), strict=True), start=count):
                require(
                    one == two,
                    f"after restore of the state after draw({count - 1}), draw({index}) on {type(space).__name__} must "
                    f"give {dict(one)!r}, but gives {dict(two)!r}. state() must hold all that later draws depend on.",
                )


def fingerprint(subject: Subject) -> list[list[str]]:
    """Return the draws on every space, as texts."""
    return [[drawn.to_json() for drawn in draw(sampler, 20)] for sampler, _ in started(subject)]


@checks("the_same_seed_draws_the_same")
def another_process_draws_the_same(subject: Subject) -> None:
    """Another process, with another hash seed, draws the same."""
    here, there = fingerprint(subject), ask_elsewhere(fingerprint, subject)
    for one, other in zip(here, there, strict=True):
        for index, (expected, found) in enumerate(zip(one, other, strict=True)):
            require(
                expected == found,
                f"another process must draw the same, but its draw({index}) is {found} instead of {expected}. "
                "Does it depend on the order of a set, or on hash()?",
            )
