"""The space nasbench201: a cell of four nodes with five operations, in a fixed skeleton.

Source: Dong and Yang, "NAS-Bench-201: Extending the Scope of Reproducible Neural Architecture
Search", ICLR 2020. Shapes: N samples, C channels, H x W pixels.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from naspipe.errors import ArchitectureError
from naspipe.space import Architecture, ArchitectureGraph, Decision, SearchSpace
from naspipe.supernet import Block

OPERATIONS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
"""The five operations, by the benchmark's names."""

EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
"""The six edges (from, to) of a cell, in the order of the benchmark's text."""

CELL_SEPARATOR = " / "

PositiveInt = Annotated[int, Field(ge=1)]


class NASBench201(SearchSpace):
    """NAS-Bench-201: six edges with five operations each, in a skeleton of three stages of cells."""

    def __init__(
        self,
        tied: bool = True,
        channels: PositiveInt = 16,
        cells_per_stage: PositiveInt = 1,
        classes: Annotated[int, Field(ge=2)] = 10,
        input_channels: PositiveInt = 1,
    ) -> None:
        """Describe the space.

        Args:
            tied: Whether all cells make the same choices, as in the benchmark (15,625 architectures), or each cell its
                own. Cells never share weights.
            channels: Channels of the first stage; each later stage has twice as many.
            cells_per_stage: Cells in each of the three stages; 5 in the benchmark.
            classes: Number of classes.
            input_channels: Channels of the images.
        """
        self.tied = tied
        self.channels = channels
        self.cells_per_stage = cells_per_stage
        self.classes = classes
        self.input_channels = input_channels
        self.num_choices = 1 if tied else 3 * cells_per_stage
        super().__init__(
            Decision(name, OPERATIONS) for choice in range(self.num_choices) for name in self._edge_names(choice)
        )

    def _edge_names(self, cell: int) -> list[str]:
        prefix = "" if self.tied else f"cell{cell}."
        return [f"{prefix}edge{source}{target}" for source, target in EDGES]

    def blocks(self) -> Iterator[nn.Module]:
        """Yield stem, cells with reductions between the stages, and head."""
        width = self.channels
        yield nn.Sequential(nn.Conv2d(self.input_channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))
        for stage in range(3):
            if stage:
                yield Reduction(width, 2 * width)
                width *= 2
            for place in range(self.cells_per_stage):
                yield Cell(width, self._edge_names(stage * self.cells_per_stage + place))
        yield nn.Sequential(
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(width, self.classes),
        )

    def format(self, architecture: Architecture) -> str:
        """Return the benchmark's text, such as ``|nor_conv_3x3~0|+|none~0|skip_connect~1|+...``.

        With ``tied: false`` it has one such text for each cell, separated by " / ".
        """
        return CELL_SEPARATOR.join(
            _format_cell([str(architecture[name]) for name in self._edge_names(choice)])
            for choice in range(self.num_choices)
        )

    def parse(self, text: str) -> Architecture:
        """Read the benchmark's text, or JSON.

        Raises:
            ArchitectureError: The text is malformed, or is not an architecture of this space.
        """
        if not text.startswith("|"):
            return super().parse(text)
        cells = text.split(CELL_SEPARATOR)
        if len(cells) != self.num_choices:
            raise ArchitectureError(
                f"a text of this space must have {self.num_choices} cells, but has {len(cells)}: {text!r}."
            )
        choices: dict[str, str] = {}
        for choice, cell in enumerate(cells):
            choices.update(zip(self._edge_names(choice), _parse_cell(cell), strict=True))
        return self.architecture(choices)

    def graph(self, architecture: Architecture) -> ArchitectureGraph:
        """Return the cells, one below the other, without edges of operation ``none``."""
        nodes: list[tuple[str, str, float, float]] = []
        edges: list[tuple[str, str, str]] = []
        titles: list[tuple[str, float, float]] = []
        for choice in range(self.num_choices):
            top = -2.8 * choice
            # Node 2 is within the triangle of the others, so that no edges cross.
            places = ((0.0, top - 2.0), (1.5, top), (1.5, top - 1.4), (3.0, top - 2.0))
            for node, (label, place) in enumerate(zip(("in", "1", "2", "out"), places, strict=True)):
                nodes.append((f"{choice}.{node}", label, *place))
            for (source, target), name in zip(EDGES, self._edge_names(choice), strict=True):
                if architecture[name] != "none":
                    edges.append((f"{choice}.{source}", f"{choice}.{target}", str(architecture[name])))
            if not self.tied:
                titles.append((f"cell {choice}", -0.15, top))
        cells = "The cell, repeated in all stages" if self.tied else "The cells"
        note = f"{cells}: a node is the sum of its incoming edges; edges with operation none are left out."
        return ArchitectureGraph(tuple(nodes), tuple(edges), tuple(titles), note)


def _format_cell(operations: Sequence[str]) -> str:
    parts = dict(zip(EDGES, operations, strict=True))
    nodes = ["|" + "".join(f"{parts[source, node]}~{source}|" for source in range(node)) for node in (1, 2, 3)]
    return "+".join(nodes)


def _parse_cell(text: str) -> list[str]:
    words = re.findall(r"\|([^|~+]+)~\d", text)
    if len(words) != len(EDGES) or _format_cell(words) != text:
        raise ArchitectureError(
            "a cell must read like |op~0|+|op~0|op~1|+|op~0|op~1|op~2|, with operations of "
            f"{', '.join(OPERATIONS)}, but got {text!r}."
        )
    return words


def _operation(name: str, width: int) -> nn.Module:
    if name == "avg_pool_3x3":
        return nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
    kernel = {"nor_conv_1x1": 1, "nor_conv_3x3": 3}[name]
    return nn.Sequential(
        nn.ReLU(),
        nn.Conv2d(width, width, kernel, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(width),
    )


class Cell(Block):
    """A cell: node 0 is the input, each later node is the sum of its incoming edges, and node 3 is the output.

    Shapes: (N, C, H, W) in and out.
    """

    def __init__(self, width: int, decisions: Sequence[str]) -> None:
        """Build every operation with parameters on every edge.

        Args:
            width: Channels.
            decisions: Names of the six decisions, in the order of ``EDGES``.
        """
        super().__init__()
        self.decisions = tuple(decisions)
        self.operations = nn.ModuleDict(
            {
                f"edge{source}{target}_{name}": _operation(name, width)
                for source, target in EDGES
                for name in ("nor_conv_1x1", "nor_conv_3x3")
            }
        )
        self.pool = _operation("avg_pool_3x3", width)

    def forward(self, x: Tensor, architecture: Architecture) -> Tensor:
        """Run the chosen operation of every edge."""
        return run_cell(x, self._modules_of(architecture))

    def _modules_of(self, architecture: Architecture) -> dict[tuple[int, int], nn.Module | None]:
        """Return the module of each edge, or None for skip_connect; edges with ``none`` are absent."""
        modules: dict[tuple[int, int], nn.Module | None] = {}
        for (source, target), decision in zip(EDGES, self.decisions, strict=True):
            option = architecture[decision]
            if option == "skip_connect":
                modules[source, target] = None
            elif option == "avg_pool_3x3":
                modules[source, target] = self.pool
            elif option != "none":
                modules[source, target] = self.operations[f"edge{source}{target}_{option}"]
        return modules

    def variant(self, architecture: Architecture) -> Hashable:
        """Return the terms of the output (input, convolutions or zeros), which decide its dtype and its gradient."""
        nodes = [{"input"}]
        for target in (1, 2, 3):
            terms: set[str] = set()
            for (source, end), decision in zip(EDGES, self.decisions, strict=True):
                option = str(architecture[decision])
                if end == target and option != "none":
                    terms |= {"convolution"} if option.startswith("nor_conv") else nodes[source]
            nodes.append(terms or {"zeros"})
        return tuple(sorted(nodes[3]))

    def layers(self) -> Mapping[str, nn.Module]:
        """Return each convolution as a layer."""
        return dict(self.operations.items())

    def used_layers(self, architecture: Architecture) -> Sequence[str]:
        """Return the chosen convolutions."""
        return [
            f"edge{source}{target}_{architecture[decision]}"
            for (source, target), decision in zip(EDGES, self.decisions, strict=True)
            if str(architecture[decision]).startswith("nor_conv")
        ]

    def extract(self, architecture: Architecture) -> nn.Module:
        """Return a cell with copies of the chosen operations."""
        return FixedCell(copy.deepcopy(self._modules_of(architecture)))


class FixedCell(nn.Module):
    """A cell of one architecture, without choices."""

    def __init__(self, modules: Mapping[tuple[int, int], nn.Module | None]) -> None:
        """Connect the operations.

        Args:
            modules: The module of each edge, or None: the edge is the identity. Absent edges are zero.
        """
        super().__init__()
        self.edges = nn.ModuleDict(
            {
                f"edge{source}{target}": module if module is not None else nn.Identity()
                for (source, target), module in modules.items()
            }
        )
        self._wiring = {
            edge: f"edge{edge[0]}{edge[1]}" if module is not None else None for edge, module in modules.items()
        }

    def forward(self, x: Tensor) -> Tensor:
        """Run the cell; (N, C, H, W) in and out."""
        return run_cell(
            x,
            {edge: self.edges[key] if key else None for edge, key in self._wiring.items()},
        )


def run_cell(x: Tensor, modules: Mapping[tuple[int, int], nn.Module | None]) -> Tensor:
    """Compute each node as the sum of its incoming edges, in their order; a node without edges is zero.

    Args:
        x: Node 0, (N, C, H, W).
        modules: The module of each edge, or None: the edge is the identity. Absent edges are zero.
    """
    nodes = [x]
    for target in (1, 2, 3):
        terms = [
            nodes[source] if module is None else module(nodes[source])
            for (source, end), module in modules.items()
            if end == target
        ]
        nodes.append(sum(terms[1:], terms[0]) if terms else torch.zeros_like(x))
    return nodes[3]


class Reduction(nn.Module):
    """The residual block between stages, which halves the size and doubles the channels; always active."""

    def __init__(self, width: int, out_width: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(width, out_width, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(out_width),
            nn.ReLU(),
            nn.Conv2d(out_width, out_width, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_width),
        )
        self.shortcut = nn.Sequential(
            nn.AvgPool2d(2, stride=2, ceil_mode=True),
            nn.Conv2d(width, out_width, 1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, 2C, ceil(H / 2), ceil(W / 2))."""
        out: Tensor = self.main(x) + self.shortcut(x)
        return out
