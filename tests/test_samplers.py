from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from naspipe import Architecture, Decision, Sampler, SearchSpace
from naspipe.errors import InputError, SpaceError
from naspipe_strategies.fair import FairSampler
from naspipe_strategies.spaced import SpacedSampler
from naspipe_strategies.uniform import UniformSampler


class Abstract(SearchSpace):
    def blocks(self) -> Iterator[nn.Module]:
        yield nn.Identity()


def space(*options: int) -> Abstract:
    return Abstract(Decision(f"d{i}", range(count)) for i, count in enumerate(options))


def drawn(sampler: Sampler, target: SearchSpace, count: int, seed: int = 0) -> list[Architecture]:
    sampler.start(target, seed)
    return [sampler.draw(index) for index in range(count)]


@given(st.lists(st.integers(4, 9), min_size=1, max_size=4), st.integers(0, 2), st.integers(0, 10**6))
def test_no_option_is_drawn_again_within_the_distance(options: list[int], d: int, seed: int) -> None:
    found = drawn(SpacedSampler(d), space(*options), 40, seed)
    for name in found[0]:
        row = [architecture[name] for architecture in found]
        for index, option in enumerate(row):
            assert option not in row[max(0, index - d) : index]


@pytest.mark.parametrize("sampler", [UniformSampler(), SpacedSampler(2)], ids=["uniform", "spaced"])
def test_each_subnet_alone_is_a_uniform_draw(sampler: Sampler) -> None:
    counts: Counter[Any] = Counter()
    for seed in range(3000):
        counts[drawn(sampler, space(5), 4, seed)[3]["d0"]] += 1
    # 600 expected each, standard deviation 22.
    assert len(counts) == 5
    assert all(abs(count - 600) < 110 for count in counts.values())


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 10**6))
def test_fair_rounds_draw_each_option_once(options: list[int], seed: int) -> None:
    found = drawn(FairSampler(), space(*options), 60, seed)
    for number, count in enumerate(options):
        row = [architecture[f"d{number}"] for architecture in found]
        for start in range(0, 60 - count + 1, count):
            assert sorted(row[start : start + count]) == list(range(count))


def test_fair_rounds_of_a_decision_count_only_where_it_exists() -> None:
    tree = Abstract([Decision("kind", range(2)), Decision("kernel", range(3), when=("kind", (0,)))])
    found = [a["kernel"] for a in drawn(FairSampler(), tree, 60) if "kernel" in a]
    assert len(found) == 30
    assert all(sorted(found[i : i + 3]) == [0, 1, 2] for i in range(0, 30, 3))


def test_fair_rounds_start_anew_at_a_dead_end_and_it_is_counted() -> None:
    sampler = FairSampler()
    # Two decisions of 2 and 3 options that must be equal: rounds of different length cannot both be kept.
    found = drawn(sampler, Diagonal([Decision("d0", range(2)), Decision("d1", range(3))]), 30)
    assert all(a["d0"] == a["d1"] for a in found)
    assert sampler.relaxed > 0


@pytest.mark.parametrize(
    "make", [UniformSampler, FairSampler, lambda: SpacedSampler(3)], ids=["uniform", "fair", "spaced"]
)
@pytest.mark.parametrize("stop", [1, 7, 30])
def test_a_saved_state_lets_another_sampler_go_on(make: Any, stop: int) -> None:
    tree = Abstract([Decision("kind", range(6)), Decision("kernel", range(5), when=("kind", (0, 1, 2)))])
    whole = drawn(make(), tree, 40)
    first, second = make(), make()
    drawn(first, tree, stop)
    state = json.loads(json.dumps(first.state()))
    second.start(tree, 0)
    second.restore(state)
    assert [second.draw(index) for index in range(stop, 40)] == whole[stop:]


@pytest.mark.parametrize("sampler", [UniformSampler(), SpacedSampler(3)], ids=["uniform", "spaced"])
def test_the_order_is_a_function_of_the_seed(sampler: Sampler) -> None:
    one = drawn(sampler, space(6, 7), 50, 1)
    assert drawn(sampler, space(6, 7), 50, 1) == one
    assert drawn(sampler, space(6, 7), 50, 2) != one


def test_a_subnet_does_not_depend_on_how_many_are_drawn_in_all() -> None:
    assert drawn(SpacedSampler(2), space(6, 7), 50)[:20] == drawn(SpacedSampler(2), space(6, 7), 20)


def test_spacing_two_less_than_the_options_does_not_cycle() -> None:
    found = drawn(SpacedSampler(3), space(*[5] * 6), 3000)
    assert len(set(found)) > 2500


def test_decisions_that_do_not_exist_ban_nothing() -> None:
    tree = Abstract([Decision("kind", range(4)), Decision("kernel", range(4), when=("kind", (0,)))])
    found = drawn(SpacedSampler(2), tree, 200)
    last: dict[Any, int] = {}
    for index, architecture in enumerate(found):
        if "kernel" in architecture:
            assert index - last.get(architecture["kernel"], -9) > 2
            last[architecture["kernel"]] = index
    assert len(last) == 4


class Diagonal(Abstract):
    def is_valid(self, architecture: Architecture) -> bool:
        return architecture["d0"] == architecture["d1"]


def test_a_dead_end_drops_the_oldest_ban_and_is_counted() -> None:
    class Narrow(Abstract):
        def is_valid(self, architecture: Architecture) -> bool:
            return architecture["d0"] in (0, 1)

    sampler = SpacedSampler(2)
    found = drawn(sampler, Narrow([Decision("d0", range(4)), Decision("d1", range(4))]), 9)
    assert sampler.relaxed == 7
    # The rule leaves two options: they alternate, the most recent one stays banned.
    assert all(a["d0"] != b["d0"] for a, b in itertools.pairwise(found))


def test_a_rule_is_obeyed_and_spaced_where_it_can_be() -> None:
    target = Diagonal([Decision("d0", range(6)), Decision("d1", range(6))])
    sampler = SpacedSampler(2)
    found = drawn(sampler, target, 60)
    assert all(a["d0"] == a["d1"] for a in found)
    assert sampler.relaxed == 0
    assert all(found[i]["d0"] not in (found[i - 1]["d0"], found[i - 2]["d0"]) for i in range(2, 60))


def test_a_rule_that_nothing_satisfies_ends_with_an_error() -> None:
    class Nothing(Abstract):
        def is_valid(self, architecture: Architecture) -> bool:
            return False

    for sampler in (UniformSampler(), FairSampler(), SpacedSampler(1)):
        with pytest.raises(SpaceError, match="refuse"):
            drawn(sampler, Nothing([Decision("d0", range(4))]), 1)


def test_a_distance_that_no_decision_allows_is_refused() -> None:
    with pytest.raises(InputError, match=r"is 4, and the largest decision allows 3"):
        SpacedSampler(4).start(space(5, 3), 0)
