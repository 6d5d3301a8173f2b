from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from torch import nn

from naspipe import Architecture, Decision, SearchSpace, Strategy
from naspipe.errors import InputError, SearchError, SpaceError
from naspipe.search.loop import SearchResult, run_search
from naspipe.search.objective import Objective, find_objectives
from naspipe.search.trial import Trial, pareto_front
from naspipe.tasks.digits import Digits
from naspipe_strategies.evolution import EvolutionStrategy
from naspipe_strategies.random_search import RandomStrategy

ACCURACY = Objective("accuracy", "maximize")
SIZE = Objective("parameters", "minimize")


class Grid(SearchSpace):
    def __init__(self, decisions: int = 4, options: int = 4) -> None:
        super().__init__(Decision(f"d{i}", range(options)) for i in range(decisions))

    def blocks(self) -> Iterator[nn.Module]:
        yield nn.Identity()


class Even(Grid):
    def is_valid(self, architecture: Architecture) -> bool:
        return sum(int(str(option)) for option in architecture.values()) % 2 == 0


def score(architecture: Architecture) -> dict[str, object]:
    values = [int(str(option)) for option in architecture.values()]
    return {"accuracy": float(sum(values)), "parameters": sum(v * v for v in values)}


def search(
    strategy: Strategy,
    space: SearchSpace | None = None,
    budget: int = 24,
    evaluate: Any = score,
    objectives: Sequence[Objective] = (ACCURACY,),
    known: Sequence[Trial] = (),
) -> tuple[SearchResult, list[Trial]]:
    space = space or Grid()
    strategy.start(space, [o.direction for o in objectives], 0)
    seen: list[Trial] = []
    return run_search(space, strategy, objectives, budget, evaluate, seen.append, known), seen


STRATEGIES = [RandomStrategy, lambda: EvolutionStrategy(population=6)]


@pytest.mark.parametrize("make", STRATEGIES, ids=["random", "evolution"])
class TestStrategies:
    def test_no_architecture_is_evaluated_twice_and_the_budget_is_exact(self, make: Any) -> None:
        result, seen = search(make(), budget=25)
        assert len(result.trials) == 25
        assert result.trials == seen
        assert len({trial.architecture for trial in seen}) == 25
        assert [trial.index for trial in seen] == list(range(25))

    def test_the_same_seed_gives_the_same_trials(self, make: Any) -> None:
        random.seed(1)
        one, _ = search(make())
        random.seed(2)
        assert search(make())[0] == one

    def test_a_used_up_space_ends_the_search_and_says_so(self, make: Any) -> None:
        result, _ = search(make(), Grid(2, 3), budget=50)
        assert len(result.trials) == 9
        assert result.note == "the space is used up: all of its 9 architectures have been evaluated"

    def test_a_used_up_space_with_a_rule_ends_the_search_too(self, make: Any) -> None:
        result, _ = search(make(), Even(2, 3), budget=50)
        assert len(result.trials) == 5
        assert "the space seems used up" in result.note

    def test_the_validity_rule_is_obeyed(self, make: Any) -> None:
        result, _ = search(make(), Even(), budget=40)
        assert len(result.trials) == 40
        assert all(Even().is_valid(trial.architecture) for trial in result.trials)

    def test_a_broken_off_search_goes_on_where_it_stopped(self, make: Any) -> None:
        whole, _ = search(make())
        for stop in (1, 7, 23):
            resumed, new = search(make(), known=whole.trials[:stop])
            assert resumed == whole
            assert new == whole.trials[stop:]

    @pytest.mark.parametrize(
        ("bad", "reason"),
        [
            (float("nan"), "objective 'accuracy' must be finite, but is nan"),
            (None, "objective 'accuracy' must be a number, but is None of type NoneType"),
            ((1.0, 2.0), r"objective 'accuracy' must be a number, but is \(1.0, 2.0\) of type tuple"),
        ],
    )
    def test_a_bad_value_fails_its_trial_with_a_reason_and_the_search_goes_on(
        self, make: Any, bad: object, reason: str
    ) -> None:
        def evaluate(architecture: Architecture) -> dict[str, object]:
            metrics = score(architecture)
            return {**metrics, "accuracy": bad} if architecture["d0"] == 0 else metrics

        result, _ = search(make(), evaluate=evaluate)
        failed = [trial for trial in result.trials if trial.reason is not None]
        assert 0 < len(failed) < len(result.trials) == 24
        assert all(trial.architecture["d0"] == 0 and trial.metrics == {} for trial in failed)
        with pytest.raises(ValueError, match=reason):
            raise ValueError(failed[0].reason)

    def test_when_every_trial_fails_the_first_reason_is_shown(self, make: Any) -> None:
        def evaluate(architecture: Architecture) -> dict[str, object]:
            raise RuntimeError("no memory")

        with pytest.raises(
            SearchError, match=r"all 24 trials of the search failed. The first reason: RuntimeError: no mem"
        ):
            search(make(), evaluate=evaluate)


def test_evolution_is_optunas_nsga2_and_improves_on_random() -> None:
    best = {
        name: max(t.metrics["accuracy"] for t in search(strategy, Grid(10, 8), 150)[0].trials)
        for name, strategy in (("random", RandomStrategy()), ("evolution", EvolutionStrategy(10)))
    }
    assert best["evolution"] > best["random"]


def test_evolution_of_two_objectives_obeys_both_directions() -> None:
    result, _ = search(EvolutionStrategy(10), Grid(6, 6), 120, objectives=(ACCURACY, SIZE))
    first = result.trials[:20]
    front = pareto_front(result.trials, (ACCURACY, SIZE))
    early = pareto_front(first, (ACCURACY, SIZE))
    # Every point of the early front is matched or beaten.
    assert all(
        any(
            t.metrics["accuracy"] >= e.metrics["accuracy"]
            and t.metrics["parameters"] <= e.metrics["parameters"]
            for t in front
        )
        for e in early
    )
    assert len(front) > len(early)


def test_evolution_falls_back_to_a_random_architecture_where_every_child_is_invalid() -> None:
    class Rare(Grid):
        """One architecture in 256 is valid: a hundred children often miss it."""

        def is_valid(self, architecture: Architecture) -> bool:
            return all(option == 0 for name, option in architecture.items() if name != "d4")

    strategy = EvolutionStrategy(2)
    result, _ = search(strategy, Rare(5, 4), 4)
    assert len(result.trials) == 4
    assert strategy._fallbacks > 0


def test_a_conditional_space_is_searched_without_decisions_that_do_not_exist() -> None:
    class Tree(Grid):
        def __init__(self) -> None:
            SearchSpace.__init__(self, [Decision("a", (0, 1)), Decision("b", (0, 1, 2, 3), when=("a", (1,)))])

    result, _ = search(EvolutionStrategy(4), Tree(), 10)
    assert len(result.trials) == 5


def test_a_strategy_that_proposes_a_stranger_is_stopped() -> None:
    class Stranger(RandomStrategy):
        def ask(self) -> list[Architecture]:
            return [Architecture({"edge": 1})]

    with pytest.raises(InputError, match="must make decision|has no decision 'edge'"):
        search(Stranger())


def test_a_strategy_that_proposes_nothing_is_stopped() -> None:
    class Silent(RandomStrategy):
        def ask(self) -> list[Architecture]:
            return [] if self._asked == 3 else super().ask()

    with pytest.raises(SearchError, match="must propose at least one architecture, .* after 3 of 24 trials"):
        search(Silent())


def test_a_rule_that_nothing_satisfies_ends_every_strategy() -> None:
    class Nothing(Grid):
        def is_valid(self, architecture: Architecture) -> bool:
            return False

    for make in STRATEGIES:
        with pytest.raises(SpaceError, match="must admit some architecture"):
            search(make(), Nothing())


def trial(index: int, accuracy: float, parameters: float, reason: str | None = None) -> Trial:
    metrics = {"accuracy": accuracy, "parameters": parameters}
    return Trial(index, Architecture({"a": index}), {} if reason else metrics, reason)


def test_the_pareto_front_is_best_first_and_leaves_failures_out() -> None:
    trials = [trial(0, 0.5, 10), trial(1, 0.9, 30), trial(2, 0.9, 40), trial(3, 0.5, 10),
              trial(4, 0.7, 20), trial(5, 0, 0, "failed"), trial(6, 0.4, 10)]  # fmt: skip
    assert [t.index for t in pareto_front(trials, (ACCURACY, SIZE))] == [1, 4, 0, 3]
    assert [t.index for t in pareto_front(trials, (ACCURACY,))] == [1, 2]


def test_trials_survive_their_log() -> None:
    space = Grid()
    for one in search(RandomStrategy(), space)[0].trials:
        assert Trial.from_record(one.to_record(space), space) == one


def test_objectives_are_those_of_the_task_and_parameters() -> None:
    assert find_objectives(Digits(), ["loss", "parameters"]) == [Objective("loss", "minimize"), SIZE]
