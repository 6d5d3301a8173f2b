from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from naspipe import Architecture, Decision, SearchSpace, Strategy
from naspipe.config.schema import BudgetConfig
from naspipe.errors import InputError, NaspipeWarning, SearchError, SpaceError, TaskError
from naspipe.search.loop import SearchResult, one_by_one, run_search
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
    return run_search(
        space, strategy, objectives, BudgetConfig(trials=budget), one_by_one(evaluate), seen.append, known
    ), seen


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
        assert result.note == "the space is exhausted: all of its 9 architectures have been evaluated"

    def test_a_used_up_space_with_a_rule_ends_the_search_too(self, make: Any) -> None:
        result, _ = search(make(), Even(2, 3), budget=50)
        assert len(result.trials) == 5
        assert "the space seems exhausted" in result.note

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
            (True, "objective 'accuracy' must be a number, but is True of type bool"),
            (torch.ones(2), r"objective 'accuracy' must be a number, but is tensor\(.* of type Tensor"),
            (torch.tensor(float("inf")), "objective 'accuracy' must be finite, but is inf"),
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
            t.metrics["accuracy"] >= e.metrics["accuracy"] and t.metrics["parameters"] <= e.metrics["parameters"]
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
    with pytest.warns(NaspipeWarning, match="100 proposals of strategy EvolutionStrategy in a row were not valid"):
        result, _ = search(strategy, Rare(5, 4), 4)
    assert len(result.trials) == 4
    assert strategy._fallbacks > 0


def test_a_conditional_space_is_searched_without_decisions_that_do_not_exist() -> None:
    class Tree(Grid):
        def __init__(self) -> None:
            SearchSpace.__init__(self, [Decision("a", (0, 1)), Decision("b", (0, 1, 2, 3), when=("a", (1,)))])

    result, _ = search(EvolutionStrategy(4), Tree(), 10)
    assert len(result.trials) == 5


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "must return a list of at least one architecture, but returned None after 15 trials"),
        ([], r"must return a list of at least one architecture, but returned \[\] after 15"),
        (Architecture({"d0": 0}), r"must return a list .* but returned Architecture\({'d0': 0}\)"),
        (
            ["d0=1"],
            "must return architectures .* must be a mapping from decisions to options, but got 'd0=1'",
        ),
        ([Architecture({"edge": 1})], "must return architectures of the space, but: .* no decision 'edge'"),
        (
            [{"d0": 9, "d1": 0, "d2": 0, "d3": 0}],
            "must return architectures of the space, but: decision 'd0' has no option 9. It offers 0, 1",
        ),
        (KeyError("mine"), "ask.. failed: KeyError: 'mine'"),
        (SpaceError("nothing is valid"), "ask.. failed: nothing is valid"),
    ],
)
def test_a_strategy_that_proposes_what_is_no_list_of_architectures_is_stopped(answer: Any, message: str) -> None:
    class Wrong(RandomStrategy):
        def ask(self) -> list[Architecture]:
            if self._asked < 3:
                return super().ask()
            if isinstance(answer, Exception):
                raise answer
            return answer

    with pytest.raises(SearchError, match=f"strategy Wrong: ask.. {message}|strategy Wrong: {message}"):
        search(Wrong())


def test_a_strategy_that_fails_to_learn_is_named_and_keeps_its_cause() -> None:
    class Forgetful(RandomStrategy):
        def tell(self, outcomes: Sequence[Any]) -> None:
            raise RuntimeError("my own fault")

    with pytest.raises(SearchError, match=r"strategy Forgetful: tell\(\) failed: RuntimeError: my own") as caught:
        search(Forgetful())
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_rule_that_nothing_satisfies_ends_every_strategy() -> None:
    class Nothing(Grid):
        def is_valid(self, architecture: Architecture) -> bool:
            return False

    for make in STRATEGIES:
        with pytest.raises(SearchError, match="ask.. failed: .* must admit some architecture"):
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


def test_metrics_that_are_finite_numbers_are_kept_whatever_their_type() -> None:
    def evaluate(architecture: Architecture) -> dict[str, object]:
        return {
            "accuracy": torch.tensor(0.5), "double": np.float64(2.5), "single": np.float32(0.25),
            "whole": np.int64(3), "count": 4, "nan": float("nan"), "text": "x", "yes": True,
            "vector": torch.ones(3),
        }  # fmt: skip

    metrics = search(RandomStrategy(), budget=1, evaluate=evaluate)[0].trials[0].metrics
    assert metrics == {"accuracy": 0.5, "double": 2.5, "single": 0.25, "whole": 3, "count": 4}
    assert [type(value) for value in metrics.values()] == [float, float, float, int, int]


def test_a_missing_objective_says_so_and_lists_what_there_is() -> None:
    with pytest.raises(SearchError, match="objective 'accuracy' is missing: the task's metrics are f1, loss"):
        search(RandomStrategy(), evaluate=lambda architecture: {"f1": 1.0, "loss": 0.5})


@pytest.mark.parametrize(
    ("directions", "message"),
    [
        (
            property(lambda self: {"loss": "minimise"}),
            "to 'maximize' or 'minimize', but maps 'loss' to 'minimise'",
        ),
        (property(lambda self: {"loss": None}), "maps 'loss' to None"),
        (property(lambda self: ["loss"]), r"but is \['loss'\] of type list"),
        (lambda self: {"loss": "minimize"}, "but is a method. Put @property above it"),
        (property(lambda self: {}["x"]), "Odd.directions failed:\nTraceback"),
    ],
)
def test_directions_must_map_metrics_to_maximize_or_minimize(directions: Any, message: str) -> None:
    task = type("Odd", (Digits,), {"directions": directions})()
    with pytest.raises(TaskError, match=message):
        find_objectives(task, ["loss"])


def test_an_unknown_default_objective_says_that_it_is_the_default() -> None:
    task = type("Other", (Digits,), {"directions": {"f1": "maximize"}})()
    with pytest.raises(InputError, match="no objective 'accuracy'. There are the metrics .* f1, .* the default"):
        find_objectives(task, ["accuracy"])
    with pytest.raises(InputError, match="the measures .*parameters.*, or a reference: file.py:Class.$"):
        find_objectives(task, ["f2"])


def test_objectives_are_those_of_the_task_and_parameters() -> None:
    assert find_objectives(Digits(), ["loss", "parameters"]) == [Objective("loss", "minimize"), SIZE]
