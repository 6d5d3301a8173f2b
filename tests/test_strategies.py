"""Strategies: valid and reproducible proposals, better than chance where there is something to learn."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from torch import nn

from naspipe import Architecture, Decision, SearchSpace, Strategy
from naspipe.errors import InputError, NaspipeWarning
from naspipe.search.strategy import Outcome
from naspipe.space.neighbours import mutate, neighbours
from naspipe_strategies.evolution import EvolutionStrategy
from naspipe_strategies.grid import GridStrategy
from naspipe_strategies.local_search import LocalSearchStrategy
from naspipe_strategies.optuna_sampler import OptunaStrategy
from naspipe_strategies.random_search import RandomStrategy
from naspipe_strategies.regularized_evolution import RegularizedEvolutionStrategy


class Peak(SearchSpace):
    """Six decisions; the further an option is from the middle, the worse."""

    def __init__(self, options: int = 5) -> None:
        super().__init__(Decision(f"d{i}", range(options)) for i in range(6))

    def blocks(self) -> Iterator[nn.Module]:
        yield nn.Identity()


class Ruled(SearchSpace):
    """A conditional decision and a rule."""

    def __init__(self) -> None:
        child = Decision("child", ("x", "y", "z"), when=("parent", ("p",)))
        super().__init__([Decision("parent", ("p", "q")), child, Decision("other", range(4))])

    def is_valid(self, architecture: Architecture) -> bool:
        return not (architecture["parent"] == "q" and architecture["other"] == 0)

    def blocks(self) -> Iterator[nn.Module]:
        yield nn.Identity()


def quality(architecture: Architecture) -> float:
    return -float(sum((int(option) - 2) ** 2 for option in architecture.values()))


def search(strategy: Strategy, space: SearchSpace, trials: int, value: Any = quality) -> list[Architecture]:
    strategy.start(space, ["maximize"], 7)
    asked: list[Architecture] = []
    while len(asked) < trials:
        proposals = strategy.ask()
        strategy.tell([Outcome(proposal, (value(proposal),)) for proposal in proposals])
        asked += proposals
    return asked


STRATEGIES = {
    "evolution": lambda: EvolutionStrategy(population=10),
    "regularized": lambda: RegularizedEvolutionStrategy(population=10, sample=3),
    "local": LocalSearchStrategy,
    "tpe": lambda: OptunaStrategy("TPESampler", {"n_startup_trials": 5}, batch=2),
}
EVERYTHING = {**STRATEGIES, "random": RandomStrategy, "grid": GridStrategy}


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_is_learnt_makes_the_search_better_than_chance(name: str) -> None:
    best = max(map(quality, search(STRATEGIES[name](), Peak(), 100)))
    by_chance = max(map(quality, search(RandomStrategy(), Peak(), 100)))
    assert best > by_chance


@pytest.mark.parametrize("name", EVERYTHING)
def test_proposals_are_valid_and_the_same_each_time(name: str) -> None:
    state = random.getstate()
    first, again = (
        search(EVERYTHING[name](), Ruled(), 40, lambda architecture: float(len(architecture))) for _ in range(2)
    )
    assert first == again
    assert all(Ruled().architecture(architecture) == architecture for architecture in first)
    assert random.getstate() == state


def test_the_grid_has_every_valid_architecture_once() -> None:
    found = search(GridStrategy(batch=1), Ruled(), 15, lambda architecture: 0.0)
    assert len(set(found)) == len(found) == 3 * 4 + 3
    assert [architecture["other"] for architecture in found[:4]] == [0, 1, 2, 3]
    assert search(GridStrategy(batch=16), Ruled(), 16, lambda architecture: 0.0)[15] == found[0]


def test_the_oldest_dies_in_regularized_evolution() -> None:
    strategy = RegularizedEvolutionStrategy(population=3, sample=3)
    first = search(strategy, Peak(), 3, lambda architecture: 1.0)
    # With equal values the youngest is the parent; the best of old has died after three more.
    best = [Outcome(first[0], (9.0,))]
    strategy.tell(best)
    assert sum(a != b for a, b in zip(strategy.ask()[0].values(), first[0].values(), strict=True)) == 1
    for architecture in search(RandomStrategy(), Peak(), 3):
        strategy.tell([Outcome(architecture, (0.0,))])
    child = strategy.ask()[0]
    assert sum(a != b for a, b in zip(child.values(), first[0].values(), strict=True)) > 1


def test_a_failed_trial_neither_lives_nor_is_moved_to() -> None:
    for strategy in (RegularizedEvolutionStrategy(population=2, sample=1), LocalSearchStrategy()):
        strategy.start(Peak(), ["minimize"], 0)
        for _ in range(5):
            strategy.tell([Outcome(strategy.ask()[0], None)])
        assert len(strategy.ask()) == 1


@pytest.mark.parametrize(
    "strategy", [RegularizedEvolutionStrategy(), LocalSearchStrategy(), OptunaStrategy("CmaEsSampler")]
)
def test_strategies_for_one_objective_refuse_two(strategy: Strategy) -> None:
    with pytest.raises(InputError, match="(?s)is for one objective, but there are 2|cannot search for 2 objectives"):
        strategy.start(Peak(), ["maximize", "minimize"], 0)


def test_unknown_samplers_and_arguments_are_refused() -> None:
    with pytest.raises(InputError, match=r"sampler must be one of optuna\.samplers, but is 'TPE'"):
        OptunaStrategy("TPE")
    with pytest.raises(InputError, match="TPESampler refuses its arguments .*startup"):
        OptunaStrategy("TPESampler", {"startup": 3})
    with pytest.raises(InputError, match="sample must be at most the population, 3, but is 4"):
        RegularizedEvolutionStrategy(population=3, sample=4)


class Narrow(Peak):
    """Only one architecture is valid, so that no mutation of it is."""

    def is_valid(self, architecture: Architecture) -> bool:
        return set(architecture.values()) == {0}


def test_regularized_evolution_says_when_no_child_is_valid() -> None:
    strategy = RegularizedEvolutionStrategy(population=2, sample=1)
    space = Narrow(options=2)
    search(strategy, space, 2, lambda architecture: 0.0)
    with pytest.warns(NaspipeWarning, match="found no valid child of .* in 100 mutations; it proposes a random"):
        assert set(strategy.ask()[0].values()) == {0}


def test_neighbours_differ_in_one_decision_and_are_all_there() -> None:
    space = Ruled()
    architecture = space.architecture({"parent": "q", "other": 1})
    found = list(neighbours(space, architecture, random.Random(0)))
    assert len(found) == 3
    assert [dict(f) for f in found if f["parent"] == "q"] == [
        {"parent": "q", "other": other} for other in (f["other"] for f in found if f["parent"] == "q")
    ]
    assert {f["other"] for f in found if f["parent"] == "q"} == {2, 3}
    child = next(f for f in found if f["parent"] == "p")
    assert child["other"] == 1
    assert child["child"] in ("x", "y", "z")
    assert all(space.is_valid(f) for f in found)


def test_mutations_reach_every_neighbour() -> None:
    space, generator = Ruled(), random.Random(0)
    architecture = space.architecture({"parent": "p", "child": "x", "other": 0})
    mutated = {mutate(space, architecture, generator) for _ in range(200)} - {None}
    assert mutated == set(neighbours(space, architecture, generator))
