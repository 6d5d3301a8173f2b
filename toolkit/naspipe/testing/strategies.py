"""The checks of a search strategy."""

from __future__ import annotations

from collections.abc import Iterator

from naspipe.errors import InputError, SpaceError
from naspipe.keys import derive_key, keyed_random
from naspipe.records import Direction
from naspipe.search.constraints import constrained
from naspipe.search.strategy import Outcome, Strategy
from naspipe.space import Architecture, SearchSpace
from naspipe.testing.check import CheckList, ConformanceError, NotApplicableError, require
from naspipe.testing.elsewhere import ask_elsewhere
from naspipe.testing.pure_spaces import spaces_for
from naspipe.testing.subject import SEED, Subject
from naspipe.testing.watching import global_generators_untouched, kept_generators, stir_generators
from naspipe.usercode import calling

PROPOSALS = 40
"""Proposals of each search, at least; and at least three generations."""

ONE: tuple[Direction, ...] = ("maximize",)
TWO: tuple[Direction, ...] = ("maximize", "minimize")

checks = CheckList()


def value_of(architecture: Architecture, objective: int) -> float:
    """Return the value of an objective for an architecture, in [0, 1): a function of its JSON."""
    return derive_key(SEED, "value", architecture.to_json(), objective) / 2**63


class Search:
    """A search with a strategy that is checked."""

    def __init__(
        self,
        subject: Subject,
        space: SearchSpace,
        directions: tuple[Direction, ...],
        seed: int,
        earlier: SearchSpace | None = None,
    ) -> None:
        """Start a new strategy.

        Args:
            subject: The strategy.
            space: What is searched.
            directions: Which way is better, for each objective.
            seed: The seed of the search.
            earlier: A space on which the strategy is started before, with another seed; None if it is started once.
        """
        self.space = space
        self.directions = directions
        self.strategy: Strategy = subject.make()
        if earlier is not None:
            self.strategy.start(earlier, directions, seed + 1)
        self.strategy.start(space, directions, seed)
        self._told = 0

    def step(self, failing: bool = False) -> list[Architecture]:
        """Ask and tell once; return the proposals. If ``failing``, every third trial fails."""
        size = self.strategy.generation_size
        objectives = f"{len(self.directions)} objective{'s' if len(self.directions) > 1 else ''}"
        where = f"on {type(self.space).__name__} with {objectives}, ask()"
        with calling(where, ConformanceError):
            proposed: object = self.strategy.ask()
        if not isinstance(proposed, (list, tuple)) or len(proposed) != size:
            raise ConformanceError(
                f"{where} must return a list of generation_size = {size} architectures, but returned {proposed!r}."
            )
        outcomes = []
        for architecture in proposed:
            try:
                checked = self.space.architecture(architecture)
            except InputError as error:
                raise ConformanceError(f"{where} must return valid architectures of the space, but: {error}") from error
            values = tuple(value_of(checked, number) for number in range(len(self.directions)))
            self._told += 1
            outcomes.append(Outcome(checked, None if failing and self._told % 3 == 0 else values))
        with calling(f"on {type(self.space).__name__} with {objectives}, tell()", ConformanceError):
            self.strategy.tell(outcomes)
        return list(proposed)


def searches(subject: Subject, directions: tuple[Direction, ...], seed: int = SEED) -> Iterator[Search]:
    """Yield a search on each space that the strategy accepts.

    Raises:
        ConformanceError: It accepts no space.
        NotApplicableError: It accepts no space with several objectives.
    """
    refusals = []
    for space in spaces_for(subject):
        try:
            search = Search(subject, space, directions, seed)
        except InputError as error:
            refusals.append(f"{type(space).__name__}: {error}")
            continue
        yield search
    if len(refusals) == len(list(spaces_for(subject))):
        if len(directions) > 1:
            raise NotApplicableError(f"start refuses {len(directions)} objectives, on {refusals[0]}")
        raise ConformanceError(
            f"start must accept some space, but refused all {len(refusals)}, the first for this reason: {refusals[0]} "
            "Give parameters that fit, or a space that fits."
        )


def proposals(search: Search, failing: bool = False) -> list[Architecture]:
    """Return the proposals of a search, in order."""
    found: list[Architecture] = []
    steps = 0
    while len(found) < PROPOSALS or steps < 3:
        found += search.step(failing)
        steps += 1
    return found


def _compare(search: Search, expected: list[Architecture], found: list[Architecture], what: str) -> None:
    for index, (one, other) in enumerate(zip(expected, found, strict=True)):
        require(
            one == other,
            f"{what}, but on {type(search.space).__name__} with {len(search.directions)} objectives proposal "
            f"{index} is {dict(other)!r} instead of {dict(one)!r}.",
        )


def accepted(subject: Subject) -> list[tuple[Direction, ...]]:
    """Return the directions that a strategy accepts: those of one objective, and those of two unless it refuses."""
    try:
        next(searches(subject, TWO))
    except NotApplicableError:
        return [ONE]
    return [ONE, TWO]


@checks()
def one_objective_can_be_searched(subject: Subject) -> None:
    """With one objective, ask returns generation_size valid architectures."""
    for search in searches(subject, ONE):
        proposals(search)


@checks("one_objective_can_be_searched")
def two_objectives_can_be_searched(subject: Subject) -> None:
    """With two objectives, one to maximise and one to minimise, the same holds, unless start refuses them."""
    for search in searches(subject, TWO):
        proposals(search)


@checks("one_objective_can_be_searched")
def failed_trials_can_be_told(subject: Subject) -> None:
    """A search continues after failed trials, which have no values."""
    for search in searches(subject, ONE):
        proposals(search, failing=True)


@checks("one_objective_can_be_searched", "two_objectives_can_be_searched")
def the_same_seed_proposes_the_same(subject: Subject) -> None:
    """Two searches with one seed and the same outcomes propose the same."""
    for directions in accepted(subject):
        first = [proposals(search) for search in searches(subject, directions)]
        for search, expected in zip(searches(subject, directions), first, strict=True):
            _compare(search, expected, proposals(search), "one seed and the same outcomes must propose the same")


@checks("the_same_seed_proposes_the_same")
def the_last_start_counts(subject: Subject) -> None:
    """Started again before the first ask, with another seed and constraints, a strategy proposes as a new one does."""
    for search in searches(subject, ONE):
        narrowed = constrained(search.space, search.step()[0].__ne__)
        try:
            narrowed.random_architecture(keyed_random(SEED, "narrowed"))
        except SpaceError:
            continue  # The space has one architecture only.
        expected = proposals(Search(subject, narrowed, ONE, SEED))
        again = Search(subject, narrowed, ONE, SEED, earlier=search.space)
        what = "a strategy that is started again must propose what a new one does, here without its first proposal"
        _compare(again, expected, proposals(again), what)


@checks("the_same_seed_proposes_the_same")
def searches_do_not_disturb_each_other(subject: Subject) -> None:
    """A search proposes the same if another one runs in between."""
    alone = [[search.step() for _ in range(3)] for search in searches(subject, ONE)]
    others = list(searches(subject, ONE, SEED + 1))
    for search, other, expected in zip(searches(subject, ONE), others, alone, strict=True):
        for step in expected:
            other.step()
            _compare(search, step, search.step(), "a strategy must share no state with another one")


@checks("the_same_seed_proposes_the_same")
def no_global_generator_is_used(subject: Subject) -> None:
    """No method uses a global generator, and proposals do not depend on its state."""
    with kept_generators():
        stir_generators(1)
        with global_generators_untouched("start, ask and tell"):
            first = [proposals(search) for search in searches(subject, ONE)]
        stir_generators(2)
        for search, expected in zip(searches(subject, ONE), first, strict=True):
            _compare(search, expected, proposals(search), "proposals must not depend on global generators")


def fingerprint(subject: Subject) -> list[list[str]]:
    """Return the proposals on every space, as texts."""
    return [
        [architecture.to_json() for architecture in proposals(search)]
        for directions in accepted(subject)
        for search in searches(subject, directions)
    ]


@checks("the_same_seed_proposes_the_same")
def another_process_proposes_the_same(subject: Subject) -> None:
    """Another process, with another hash seed, proposes the same."""
    here, there = fingerprint(subject), ask_elsewhere(fingerprint, subject)
    for one, other in zip(here, there, strict=True):
        for index, (expected, found) in enumerate(zip(one, other, strict=True)):
            require(
                expected == found,
                f"another process must propose the same, but its proposal {index} is {found} instead of {expected}. "
                "Does it depend on the order of a set, or on hash()?",
            )
