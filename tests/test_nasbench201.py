from __future__ import annotations

import random

import pytest
import torch

from naspipe import Block, Supernet
from naspipe.errors import ArchitectureError
from naspipe_spaces.nasbench201 import EDGES, OPERATIONS, NASBench201, Reduction

TEXT = "|avg_pool_3x3~0|+|nor_conv_1x1~0|skip_connect~1|+|nor_conv_1x1~0|skip_connect~1|skip_connect~2|"


def test_tied_cells_are_the_benchmarks_15625_architectures() -> None:
    assert NASBench201().size == 5**6 == 15_625
    assert NASBench201(tied=False, cells_per_stage=2).size == 5**36


def test_the_benchmarks_text_goes_both_ways() -> None:
    space = NASBench201()
    architecture = space.parse(TEXT)
    assert space.format(architecture) == TEXT
    assert dict(architecture) == {
        "edge01": "avg_pool_3x3", "edge02": "nor_conv_1x1", "edge12": "skip_connect",
        "edge03": "nor_conv_1x1", "edge13": "skip_connect", "edge23": "skip_connect",
    }  # fmt: skip
    assert space.parse(architecture.to_json()) == architecture


def test_untied_cells_have_a_text_each() -> None:
    space = NASBench201(tied=False)
    architecture = space.random_architecture(random.Random(0))
    assert space.parse(space.format(architecture)) == architecture
    assert len(space.format(architecture).split(" / ")) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT[:-3], "a cell must read like"),
        (TEXT.replace("skip_connect~2", "skip_connect~1"), "a cell must read like"),
        (TEXT.replace("skip_connect~2", "skip~2"), "'edge23' has no option 'skip'"),
        (f"{TEXT} / {TEXT}", "must have 1 cells, but has 2"),
        ("nothing", "must be JSON"),
    ],
)
def test_a_malformed_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(ArchitectureError, match=message):
        NASBench201().parse(text)


def test_the_skeleton_has_three_stages_that_halve_the_image_and_double_the_channels() -> None:
    space = NASBench201(channels=4, cells_per_stage=2, classes=7, input_channels=3)
    supernet = Supernet(space, 0)
    assert len(supernet) == 1 + 6 + 2 + 1
    x = torch.randn(2, 3, 9, 9)
    shapes = []
    architecture = space.parse(TEXT)
    for block in supernet:
        x = block(x, architecture)
        shapes.append(tuple(x.shape))
    assert shapes == [
        (2, 4, 9, 9), (2, 4, 9, 9), (2, 4, 9, 9), (2, 8, 5, 5), (2, 8, 5, 5), (2, 8, 5, 5),
        (2, 16, 3, 3), (2, 16, 3, 3), (2, 16, 3, 3), (2, 7),
    ]  # fmt: skip


def reference_cell(x: torch.Tensor, cell: Block, operations: dict[tuple[int, int], str]) -> torch.Tensor:
    """The cell as the paper defines it: every edge computed, ``none`` as zeros, summed at each node."""
    nodes = [x]
    for target in (1, 2, 3):
        total = torch.zeros_like(x)
        for source in range(target):
            name = operations[source, target]
            node = nodes[source]
            if name == "skip_connect":
                total = total + node
            elif name == "avg_pool_3x3":
                total = total + torch.nn.functional.avg_pool2d(node, 3, 1, 1, count_include_pad=False)
            elif name != "none":
                total = total + cell.layers()[f"edge{source}{target}_{name}"](node)
        nodes.append(total)
    return nodes[3]


@pytest.mark.parametrize("seed", range(8))
def test_a_cell_computes_what_the_paper_defines(seed: int) -> None:
    space = NASBench201(channels=4)
    architecture = space.random_architecture(random.Random(seed))
    cell = list(Supernet(space, 0))[1]
    operations = {edge: str(architecture[f"edge{edge[0]}{edge[1]}"]) for edge in EDGES}
    x = torch.randn(2, 4, 6, 6)
    assert torch.equal(cell(x, architecture), reference_cell(x, cell, operations))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_an_extracted_subnet_has_no_choices_and_computes_the_same_bits(tied: bool, seed: int) -> None:
    space = NASBench201(tied=tied, channels=4)
    architecture = space.random_architecture(random.Random(seed))
    supernet = Supernet(space, 0)
    subnet = supernet.extract(architecture)
    assert not [module for module in subnet.modules() if isinstance(module, Block)]
    assert sum(p.numel() for p in subnet.parameters()) == supernet.num_parameters(architecture)
    x = torch.randn(4, 1, 8, 8)
    assert torch.equal(subnet(x), supernet(x, architecture))


def test_a_disconnected_cell_runs_forward_and_backward() -> None:
    space = NASBench201(channels=4)
    nothing = space.architecture(dict.fromkeys([d.name for d in space.decisions], "none"))
    supernet = Supernet(space, 0)
    supernet(torch.randn(2, 1, 8, 8), nothing).sum().backward()
    assert supernet.num_parameters(nothing) < supernet.num_parameters(space.parse(TEXT))


def test_layers_are_the_convolutions_of_edges_and_the_rest_is_always_active() -> None:
    space = NASBench201(channels=4)
    used = Supernet(space, 0).used_layers(space.parse(TEXT))
    names = [[layer.name for layer in layers] for layers in used]
    cell = ["edge02_nor_conv_1x1", "edge03_nor_conv_1x1"]
    assert names == [["always_active"], cell, ["always_active"], cell, ["always_active"], cell,
                     ["always_active"]]  # fmt: skip


def test_the_drawing_has_every_edge_but_none() -> None:
    space = NASBench201()
    graph = space.graph(space.parse(TEXT.replace("avg_pool_3x3", "none")))
    assert len(graph.nodes) == 4
    assert len(graph.edges) == 5
    assert {label for _, _, label in graph.edges} <= set(OPERATIONS)


def test_a_reduction_rounds_odd_sizes_up_on_both_branches() -> None:
    assert Reduction(2, 4)(torch.randn(1, 2, 7, 7)).shape == (1, 4, 4, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("needs_gradient", [False, True])
def test_cells_of_one_variant_return_the_same_form(dtype: torch.dtype, needs_gradient: bool) -> None:
    space = NASBench201(channels=2)
    cell = list(Supernet(space, 0))[1]
    x = torch.zeros(2, 2, 1, 1, dtype=dtype, requires_grad=needs_gradient)
    generator = random.Random(0)
    forms: dict[object, set[tuple[torch.dtype, bool]]] = {}
    for _ in range(400):
        options = [generator.choice(OPERATIONS if generator.random() < 0.5 else OPERATIONS[:2]) for _ in EDGES]
        architecture = space.from_indices([OPERATIONS.index(option) for option in options])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = cell(x, architecture)
        forms.setdefault(cell.variant(architecture), set()).add((output.dtype, output.requires_grad))
    assert len(forms) > 4
    assert all(len(found) == 1 for found in forms.values())
