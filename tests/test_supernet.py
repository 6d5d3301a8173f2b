import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from conftest import TinySpace
from torch import Tensor, nn

from naspipe import Architecture, Block, ChoiceBlock, Decision, SearchSpace, Supernet
from naspipe.errors import SpaceError
from naspipe.supernet import build_subnet
from naspipe.supernet.normalization import calibrate_statistics
from naspipe.supernet.supernet import ALWAYS_ACTIVE, build_blocks


class OneBlock(SearchSpace):
    """A space of whatever modules a test yields."""

    def __init__(self, *modules: Any) -> None:
        super().__init__([Decision("a", ("x", "y"))])
        self.modules = modules

    def blocks(self) -> Iterator[nn.Module]:
        yield from self.modules


def architectures(space: SearchSpace, count: int) -> list[Architecture]:
    return [space.random_architecture(random.Random(seed)) for seed in range(count)]


def test_parameters_are_divided_into_layers_without_rest() -> None:
    supernet = Supernet(TinySpace(), 0)
    names = [(layer.block, layer.name, layer.strict) for layer in supernet.layers()]
    candidates = [(b, name, True) for b in (1, 2, 3) for name in ("conv1", "conv3", "option_3_2")]
    assert names == [(0, ALWAYS_ACTIVE, False), *candidates, (4, ALWAYS_ACTIVE, False)]
    assert supernet.num_parameters() == sum(p.numel() for p in supernet.parameters())


def test_a_layer_without_parameters_is_none() -> None:
    space = TinySpace()
    used = Supernet(space, 0).used_layers(space.architecture({"op0": "skip", "op1": "skip", "op2": "conv1"}))
    assert [[layer.name for layer in layers] for layers in used] == [
        [ALWAYS_ACTIVE], [], [], ["conv1"], [ALWAYS_ACTIVE],
    ]  # fmt: skip


@pytest.mark.parametrize("architecture", architectures(TinySpace(), 6), ids=str)
def test_an_extracted_subnet_computes_the_same_bits_as_the_supernet(architecture: Architecture) -> None:
    supernet = Supernet(TinySpace(), 0).train()
    subnet = supernet.extract(architecture).train()
    assert not [m for m in subnet.modules() if isinstance(m, Block)]
    assert sum(p.numel() for p in subnet.parameters()) == supernet.num_parameters(architecture)
    x = torch.randn(5, 1, 4, 4)
    torch.manual_seed(1)
    expected = supernet(x, architecture)
    torch.manual_seed(1)
    assert torch.equal(subnet(x), expected)


def test_extraction_copies() -> None:
    supernet = Supernet(TinySpace(), 0)
    subnet = supernet.extract(architectures(TinySpace(), 1)[0])
    for parameter in subnet.parameters():
        parameter.data.zero_()
    fresh = Supernet(TinySpace(), 0)
    assert all(torch.equal(a, b) for a, b in zip(supernet.parameters(), fresh.parameters(), strict=True))


def test_initial_weights_depend_on_seed_and_purpose_only() -> None:
    space = TinySpace()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one = Supernet(space, 0).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    two = Supernet(space, 0).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    other = Supernet(space, 1).state_dict()
    assert not torch.equal(one["blocks.0.module.weight"], other["blocks.0.module.weight"])
    subnet = build_subnet(space, architectures(space, 1)[0], 0)
    assert not torch.equal(subnet[0].weight, one["blocks.0.module.weight"])


def test_a_block_is_initialised_alike_whatever_is_drawn_before_it() -> None:
    class Wider(TinySpace):
        def blocks(self) -> Iterator[nn.Module]:
            blocks = super().blocks()
            yield nn.Sequential(next(blocks), nn.Conv2d(4, 4, 1))
            yield from blocks

    one = [b.state_dict() for b in build_blocks(TinySpace(), 0, "supernet")]
    two = [b.state_dict() for b in build_blocks(Wider(), 0, "supernet")]
    for block in (1, 2, 3, 4):
        assert all(torch.equal(one[block][name], two[block][name]) for name in one[block])


def test_normalisation_keeps_no_statistics_in_the_supernet_and_has_them_in_a_subnet() -> None:
    space = TinySpace()
    supernet = Supernet(space, 0)
    assert not list(supernet.buffers())
    architecture = space.architecture({"op0": "conv1", "op1": "skip", "op2": "skip"})
    subnet = supernet.extract(architecture)
    norm = subnet[1][1]
    assert norm.track_running_stats
    assert torch.equal(norm.running_mean, torch.zeros(4))
    batches = [torch.randn(8, 1, 4, 4), torch.randn(8, 1, 4, 4)]
    calibrate_statistics(subnet, batches)
    seen = torch.stack([subnet[1][0](subnet[0](x)).mean(dim=(0, 2, 3)) for x in batches])
    # Means of means: the sums are in another order.
    assert torch.allclose(norm.running_mean, seen.mean(0), atol=1e-6)
    assert not subnet.training
    assert norm.momentum == 0.1


def test_a_norm_that_never_tracked_still_does_not() -> None:
    subnet = Supernet(OneBlock(nn.BatchNorm1d(2, track_running_stats=False)), 0).extract(Architecture({"a": "x"}))
    assert not subnet[0].track_running_stats
    calibrate_statistics(subnet, [torch.randn(3, 2)])


class Declares(Block):
    """A block that declares what a test tells it to."""

    def __init__(self, layers: Mapping[str, nn.Module], used: Sequence[str]) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
        self._declared, self._used = layers, used

    def forward(self, x: Tensor, architecture: Architecture) -> Tensor:
        return x

    def layers(self) -> Mapping[str, nn.Module]:
        return self._declared or dict(self.inner.items())

    def used_layers(self, architecture: Architecture) -> Sequence[str]:
        return self._used


shared = nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ((), "must yield blocks, but yielded none"),
        ((3,), "must yield torch modules, but yielded 3 as block 0"),
        ((Declares({"a": nn.Linear(2, 2)}, []),), "layer 'a' must be part of the block"),
        ((ChoiceBlock("a", {"x": shared, "y": shared}),), "'y' and 'x' share"),
        ((nn.Sequential(shared), nn.Sequential(shared)), "blocks must not share parameters"),
    ],
)
def test_blocks_that_are_not_well_formed_say_why(modules: tuple[Any, ...], message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        Supernet(OneBlock(*modules), 0)


def test_blocks_that_are_nothing_or_fail_say_so() -> None:
    class Silent(OneBlock):
        def blocks(self) -> Any:
            return None

    class Broken(OneBlock):
        def blocks(self) -> Any:
            raise RuntimeError("my own fault")

    with pytest.raises(SpaceError, match=r"Silent.blocks\(\) must yield torch modules .* but returned None"):
        Supernet(Silent(), 0)
    with pytest.raises(SpaceError, match=r"(?s)Broken.blocks\(\) failed:.*my own fault"):
        Supernet(Broken(), 0)


def test_used_layers_must_be_layers_each_once() -> None:
    for used in (["c"], ["a", "a"]):
        supernet = Supernet(OneBlock(Declares({}, used)), 0)
        with pytest.raises(SpaceError, match=r"used_layers must name layers of the block, each once"):
            supernet.used_layers(Architecture({"a": "x"}))


def test_candidates_must_be_the_options_of_their_decision() -> None:
    with pytest.raises(SpaceError, match="must be the options of its decision 'a', 'x', 'y', but are 'x'"):
        ChoiceBlock(Decision("a", ("x", "y")), {"x": nn.Identity()})
    with pytest.raises(SpaceError, match="must have candidates"):
        ChoiceBlock("a", {})


def test_options_with_the_same_word_get_names_of_their_own() -> None:
    options = ("3x3", 3, (3, 3), "3.3", "keys", "3_3")
    block = ChoiceBlock(Decision("a", options), {o: nn.Linear(1, 1) for o in options})
    assert len(block.layers()) == len(options)
    for option in options:
        (name,) = block.used_layers(Architecture({"a": option}))
        assert block.extract(Architecture({"a": option})).weight.equal(block.layers()[name].weight)


def test_a_choice_that_does_not_exist_passes_the_payload_on() -> None:
    block = ChoiceBlock("a", {"x": nn.Linear(2, 2)})
    nothing = Architecture({"b": 1})
    x = torch.ones(1, 2)
    assert block(x, nothing) is x
    assert block.used_layers(nothing) == ()
    assert isinstance(block.extract(nothing), nn.Identity)


def test_the_default_extraction_leaves_unused_layers_out() -> None:
    class Pick(Declares):
        def forward(self, x: Tensor, architecture: Architecture) -> Tensor:
            return self.inner[str(architecture["a"])](x)

        def layers(self) -> Mapping[str, nn.Module]:
            return dict(self.inner.items())

        def used_layers(self, architecture: Architecture) -> Sequence[str]:
            return [str(architecture["a"])]

    block = Pick({}, [])
    architecture = Architecture({"a": "b"})
    subnet = block.extract(architecture)
    assert [name for name, _ in subnet.named_parameters()] == ["block.inner.b.weight", "block.inner.b.bias"]
    x = torch.randn(3, 2)
    assert torch.equal(subnet(x), block(x, architecture))


def test_a_part_of_the_blocks_has_the_weights_of_the_whole_supernet() -> None:
    whole, part = Supernet(TinySpace(), 3), Supernet(TinySpace(), 3, own=range(1, 3))
    for index, (block, expected) in enumerate(zip(part, whole, strict=True)):
        for found, parameter in zip(block.parameters(), expected.parameters(), strict=True):
            assert found.is_meta == (index not in (1, 2))
            assert found.is_meta or torch.equal(found, parameter)
