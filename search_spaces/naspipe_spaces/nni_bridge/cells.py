"""Cells: nodes that sum operations on earlier nodes, where NNI's ``Cell`` stood."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from naspipe_spaces.nni_bridge.choosers import Branch, Choices, Chooser, Condition, Fix, choices_now


@dataclass(frozen=True)
class CellShape:
    """How a cell is wired.

    Attributes:
        label: Prefix of its decisions.
        predecessors: Number of inputs, nodes 0 and up.
        nodes: Nodes that are computed; all of them leave the cell.
        operations: Operations summed at each of them.
        concat_dim: Dimension along which the nodes are concatenated.
    """

    label: str
    predecessors: int
    nodes: int
    operations: int
    concat_dim: int

    def computed(self) -> range:
        """Return the nodes that are computed."""
        return range(self.predecessors, self.predecessors + self.nodes)

    def slots(self, node: int) -> list[tuple[str, str]]:
        """Return the decisions (input, operation) of each operation of a node."""
        return [(f"{self.label}/input_{node}_{k}", f"{self.label}/op_{node}_{k}") for k in range(self.operations)]

    def run(self, owner: Any, inputs: Sequence[Any], terms: Callable[[int], list[tuple[nn.Module, int]]]) -> Any:
        """Run a cell.

        Args:
            owner: Has ``preprocessor`` and ``postprocessor``.
            inputs: The predecessors, as one list or one by one.
            terms: Returns the operations of a node with the node that each reads.
        """
        predecessors = list(inputs[0]) if len(inputs) == 1 and isinstance(inputs[0], (list, tuple)) else list(inputs)
        states = list(owner.preprocessor(predecessors))
        for node in self.computed():
            states.append(sum(module(states[source]) for module, source in terms(node)))
        return owner.postprocessor(torch.cat(states[self.predecessors :], self.concat_dim), predecessors)


class EdgeCell(Chooser):
    """A cell in which every edge has candidates of its own: a ``Cell`` in NNI's supernets.

    An operation that reads a predecessor may differ from one that reads a node (its stride, in a reduction cell), so
    that each has its own weights. Source: Liu et al., "DARTS: Differentiable Architecture Search", ICLR 2019.
    """

    def __init__(
        self,
        shape: CellShape,
        candidates: Callable[[int, int], Mapping[str, nn.Module]],
        preprocessor: Any,
        postprocessor: Any,
    ) -> None:
        """Build every candidate of every edge.

        Args:
            shape: The wiring.
            candidates: Makes the candidates of an edge from (node, node that is read).
            preprocessor: Maps the list of predecessors to one of the same length.
            postprocessor: Called with the cell's output and the predecessors.
        """
        super().__init__()
        self.shape = shape
        self.preprocessor = preprocessor
        self.ops = nn.ModuleList(
            nn.ModuleList(nn.ModuleDict(candidates(node, source)) for source in range(node))
            for node in shape.computed()
        )
        self.postprocessor = postprocessor

    def _edge(self, node: int, source: int) -> nn.ModuleDict:
        edges = self.ops[node - self.shape.predecessors]
        assert isinstance(edges, nn.ModuleList)
        edge = edges[source]
        assert isinstance(edge, nn.ModuleDict)
        return edge

    def _terms(self, node: int, choices: Choices) -> list[tuple[nn.Module, int]]:
        terms = []
        for source_label, operation_label in self.shape.slots(node):
            source, operation = choices[source_label], choices[operation_label]
            assert isinstance(source, int)
            terms.append((self._edge(node, source)[str(operation)], source))
        return terms

    def forward(self, *inputs: Any) -> Any:
        """Run the chosen operations; called with the predecessors, as a list or one by one."""
        choices = choices_now()
        return self.shape.run(self, inputs, lambda node: self._terms(node, choices))

    def labels(self) -> tuple[str, ...]:
        """Return the decisions of all nodes."""
        return tuple(itertools.chain(*(slot for node in self.shape.computed() for slot in self.shape.slots(node))))

    def branches(self) -> Sequence[Branch]:
        """Return every candidate of every edge."""
        found = []
        for node in self.shape.computed():
            slots = self.shape.slots(node)
            labels = tuple(itertools.chain(*slots))
            for source in range(node):
                for name, module in self._edge(node, source).items():
                    path = f"ops.{node - self.shape.predecessors}.{source}.{name}"
                    found.append(Branch(path, module, Condition(labels, _takes(slots, source, name))))
        return found

    def fixed(self, choices: Choices, fix: Fix) -> nn.Module:
        """Return the cell of one architecture."""
        terms = [
            [(fix(module), source) for module, source in self._terms(node, choices)] for node in self.shape.computed()
        ]
        sides = [fix(side) if isinstance(side, nn.Module) else side for side in (self.preprocessor, self.postprocessor)]
        return FixedCell(self.shape, terms, *sides)


def _takes(slots: Sequence[tuple[str, str]], source: int, operation: str) -> Callable[[Choices], bool]:
    return lambda choices: any(choices[s] == source and choices[o] == operation for s, o in slots)


class FixedCell(nn.Module):
    """A cell of one architecture, without choices."""

    def __init__(
        self,
        shape: CellShape,
        terms: Sequence[Sequence[tuple[nn.Module, int]]],
        preprocessor: Any,
        postprocessor: Any,
    ) -> None:
        """Wire the operations up.

        Args:
            shape: The wiring.
            terms: For every computed node its operations with the node that each reads.
            preprocessor: As in ``EdgeCell``.
            postprocessor: As in ``EdgeCell``.
        """
        super().__init__()
        self.shape = shape
        self.preprocessor = preprocessor
        self.ops = nn.ModuleList(nn.ModuleList(module for module, _ in row) for row in terms)
        self.sources = [[source for _, source in row] for row in terms]
        self.postprocessor = postprocessor

    def _terms(self, node: int) -> list[tuple[nn.Module, int]]:
        place = node - self.shape.predecessors
        row = self.ops[place]
        assert isinstance(row, nn.ModuleList)
        return list(zip(row, self.sources[place], strict=True))

    def forward(self, *inputs: Any) -> Any:
        """Run the cell; called with the predecessors, as a list or one by one."""
        return self.shape.run(self, inputs, self._terms)
