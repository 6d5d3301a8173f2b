"""What candidates do wrong is said before a run starts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TINY, TinySpace, TinyTask
from torch import Tensor, nn

from naspipe import Architecture, Block, ChoiceBlock, Decision, Run, SearchSpace, Supernet
from naspipe.errors import SpaceError
from naspipe.files import digest_tensors
from naspipe.preflight.option_check import MAX_TRAINED, check_options
from naspipe.space.covering import covering_architectures
from naspipe.supernet.meta import build_on_meta


class Chain(SearchSpace):
    """A stem, what a test puts in the middle, and a head."""

    middle: Callable[[], Sequence[nn.Module]]

    def __init__(self) -> None:
        super().__init__([Decision("a", ("one", "two", "three")), Decision("b", ("x", "y"))])

    def blocks(self) -> Iterator[nn.Module]:
        yield nn.Conv2d(1, 4, 3, padding=1)
        yield from type(self).middle()
        yield nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


def refused(middle: Callable[[], Sequence[nn.Module]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return why a run with a chain is refused; nothing may have been made."""
    monkeypatch.setattr(Chain, "middle", middle, raising=False)
    with pytest.raises(SpaceError) as caught:
        Run.create(
            {**TINY, "space": {"name": "test_candidates:Chain"}, "sampler": {"name": "uniform"}}, tmp_path / "run"
        )
    assert not (tmp_path / "run").exists()
    return str(caught.value)


def conv(channels: int) -> nn.Module:
    return nn.Conv2d(4, channels, 1)


def test_two_candidates_that_return_different_shapes_are_both_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def middle() -> list[nn.Module]:
        first = ChoiceBlock("a", {"one": conv(4), "two": conv(4), "three": conv(5)})
        return [first, ChoiceBlock("b", {"x": conv(4), "y": conv(4)})]

    text = refused(middle, tmp_path, monkeypatch)
    assert "block 2 (b=" in text
    assert "fails on what block 1 (a=three) returns, shape (2, 5, 4, 4); a=" in text
    assert "returns shape (2, 4, 4, 4)" in text


class Sneaky(Block):
    """Uses its second layer under every option, and names it under one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = conv(4), conv(4)

    def forward(self, x: Tensor, architecture: Architecture) -> Tensor:
        return self.second(self.first(x))

    def layers(self) -> dict[str, nn.Module]:
        return {"first": self.first, "second": self.second}

    def used_layers(self, architecture: Architecture) -> Sequence[str]:
        return ["first", "second"] if architecture["b"] == "x" else ["first"]

    def extract(self, architecture: Architecture) -> nn.Module:
        return nn.Sequential(self.first, self.second)


def test_a_layer_that_is_used_but_not_named_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = refused(lambda: [Sneaky()], tmp_path, monkeypatch)
    assert "a block must use only the layers that its used_layers names" in text
    assert "parameter 'second.weight' of block 1, layer 'second' got a gradient" in text


class Counter(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x


def test_a_buffer_that_a_forward_changes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = refused(lambda: [Counter()], tmp_path, monkeypatch)
    assert "buffer '1.module.calls' (block and name) changes" in text


class Wide(TinySpace):
    """More options than are tried on real numbers; only the last of them fails."""

    broken = MAX_TRAINED + 2

    def __init__(self) -> None:
        SearchSpace.__init__(self, [Decision("a", range(self.broken + 1))])
        self.width = 4

    def candidate(self, option: Any) -> nn.Module:
        return conv(5 if option == self.broken else 4)


def test_every_candidate_is_tried_and_the_supernet_is_left_as_it_was() -> None:
    supernet = Supernet(Wide(), 0)
    before = digest_tensors(supernet.state_dict())
    task = TinyTask()
    with pytest.raises(SpaceError, match=f"block 1 \\(a={Wide.broken}\\) returns"):
        check_options(supernet, build_on_meta(supernet.space, 0), task.load(0).train.batch([0, 1], 0), task.loss, 0)
    assert digest_tensors(supernet.state_dict()) == before
    assert all(parameter.grad is None for parameter in supernet.parameters())


@pytest.mark.parametrize("rule", [False, True])
def test_covering_architectures_have_every_option_and_are_few(rule: bool) -> None:
    class Conditional(TinySpace):
        def __init__(self) -> None:
            child = Decision("child", range(7), when=("parent", ("p",)))
            SearchSpace.__init__(self, [Decision("parent", ("p", "q", "r")), child, Decision("other", range(9))])

    if rule:
        Conditional.is_valid = lambda self, architecture: architecture["other"] != 0 or architecture["parent"] == "q"
    space = Conditional()
    found = list(covering_architectures(space, random.Random(1)))
    assert {item for architecture in found for item in architecture.items()} == {
        (decision.name, option) for decision in space.decisions for option in decision.options
    }
    assert all(space.is_valid(architecture) for architecture in found)
    assert len(found) < 9 + 7
    assert len(list(covering_architectures(TinySpace(), random.Random(0)))) == 4
