import pickle
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from naspipe import Architecture, Decision, SearchSpace
from naspipe.errors import ArchitectureError, SpaceError
from naspipe.space import Option


class Plain(SearchSpace):
    def blocks(self) -> Iterator[nn.Module]:
        yield nn.Identity()


class Ruled(Plain):
    def is_valid(self, architecture: Architecture) -> bool:
        return False


def conditional() -> Plain:
    return Plain(
        [
            Decision("kind", ("conv", "pool", "skip")),
            Decision("kernel", (1, 3, (3, 5)), when=("kind", ("conv", "pool"))),
            Decision("bias", (True, False), when=("kernel", (3, (3, 5)))),
        ]
    )


options = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=5,
)


@given(st.dictionaries(st.text(min_size=1), options, max_size=5))
def test_json_round_trip_keeps_tuples(choices: dict[str, Option]) -> None:
    architecture = Architecture(choices)
    again = Architecture.from_json(architecture.to_json())
    assert again == architecture
    assert hash(again) == hash(architecture)
    assert dict(again) == choices
    assert pickle.loads(pickle.dumps(architecture)) == architecture


def test_an_architecture_cannot_be_changed() -> None:
    architecture = Architecture({"a": 1})
    with pytest.raises(AttributeError, match="immutable"):
        architecture._options = (2,)


def test_size_counts_every_architecture_of_a_conditional_space_once() -> None:
    space = conditional()
    found = {space.random_architecture(random.Random(seed)) for seed in range(2000)}
    # conv and pool: kernel 1 alone, or one of two kernels with two biases: 5 each; skip: 1.
    assert space.size == len(found) == 11


def test_a_decision_that_does_not_exist_is_absent_and_refused() -> None:
    space = conditional()
    skip = space.architecture({"kind": "skip"})
    assert list(skip) == ["kind"]
    assert skip.get("kernel") is None
    with pytest.raises(ArchitectureError, match=r"'kernel' exists only if 'kind' is one of .* is 'skip'"):
        space.architecture({"kind": "skip", "kernel": 3})


def test_architectures_are_canonical_whatever_the_order_and_type_they_were_given_in() -> None:
    space = conditional()
    one = space.architecture({"bias": 1, "kernel": [3, 5], "kind": "conv"})
    assert one.to_json() == '{"kind":"conv","kernel":[3,5],"bias":true}'
    assert one == space.parse(one.to_json())


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"kind": "cov"}, r"'kind' has no option 'cov'. It offers 'conv', 'pool', 'skip'"),
        ({"kid": "conv"}, r"has no decision 'kid'. Did you mean 'kind'\?"),
        ({"kind": "conv"}, r"must make decision 'kernel', but it is missing"),
        ({"kind": "skip", "edge": 1}, r"has no decision 'edge'"),
    ],
)
def test_an_architecture_of_another_space_is_refused_by_naming_the_decision(
    choices: dict[str, Option], message: str
) -> None:
    with pytest.raises(ArchitectureError, match=message):
        conditional().architecture(choices)


@pytest.mark.parametrize(
    ("decisions", "message"),
    [
        ([], "at least one decision"),
        ([Decision("a", (1,)), Decision("a", (2,))], "different names, but two are 'a'"),
        ([Decision("b", (1,), when=("a", (1,)))], "depends on 'a', which must come before"),
        ([Decision("a", (1, 2)), Decision("b", (1,), when=("a", (3,)))], "no option of it"),
    ],
)
def test_a_space_that_is_not_well_formed_says_why(decisions: list[Decision], message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        Plain(decisions)


@pytest.mark.parametrize(
    ("values", "message"),
    [((), "at least one option"), ((1, True), "True equals 1"), (({},), "give it a name|Make its name the option")],
)
def test_options_must_be_distinct_plain_values(values: tuple[Option, ...], message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        Decision("a", values)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", "xy"), "options of decision 'a' must be a list or a tuple, but got 'xy' of type str"),
        (("a", {"x"}), "options of decision 'a' must be a list or a tuple, but got {'x'} of type set"),
        (("a", 3), "must be a list or a tuple, but got 3 of type int"),
        ((3, "xy"), "must have a text as its name, but got 3"),
    ],
)
def test_a_decision_needs_a_name_and_options_in_order(arguments: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        Decision(*arguments)


@pytest.mark.parametrize("when", ["kind", ("kind",), (1, 2), {"kind": "conv"}, ("kind", "conv"), ("kind", 3)])
def test_a_condition_is_a_name_and_a_list_of_options(when: Any) -> None:
    with pytest.raises(SpaceError, match="when= of decision 'a'.* must be .* but got"):
        Decision("a", (1, 2), when=when)


@pytest.mark.parametrize("choices", [None, "a=1", 3])
def test_choices_must_be_a_mapping(choices: Any) -> None:
    with pytest.raises(ArchitectureError, match="must be a mapping .* but got .* Plain has the decisions kind, "):
        conditional().architecture(choices)


def test_a_rule_that_nothing_satisfies_ends_with_an_error() -> None:
    with pytest.raises(SpaceError, match="must admit some architecture, but refused each of 10000"):
        Ruled([Decision("a", (1, 2))]).random_architecture(random.Random(0))


def test_a_missing_decision_is_named_when_it_is_read() -> None:
    with pytest.raises(ArchitectureError, match="has no decision 'b'. It has a"):
        Architecture({"a": 1})["b"]
