"""Cells, whose nodes sum operations on earlier nodes; they replace NNI's ``Cell``."""

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
    """The connections of a cell.

    Attributes:
        label: Prefix of its decisions.
        predecessors: Number of inputs, which are the first nodes.
        nodes: Number of computed nodes; all of them are outputs of the cell.
        operations: Number of operations that are summed at each computed node.
        concat_dim: Dimension along which the outputs are concatenated.
    """

    label: str
    predecessors: int
    nodes: int
    operations: int
    concat_dim: int

    def computed(self) -> range:
        """Return the indices of the computed nodes."""
        return range(self.predecessors, self.predecessors + self.nodes)

    def slots(self, node: int) -> list[tuple[str, str]]:
        """Return the decisions (input, operation) of each operation of a node."""
        return [(f"{self.label}/input_{node}_{k}", f"{self.label}/op_{node}_{k}") for k in range(self.operations)]

    def run(self, owner: Any, inputs: Sequence[Any], terms: Callable[[int], list[tuple[nn.Module, int]]]) -> Any:
        """Run a cell.

        Args:
            owner: The cell, with its ``preprocessor`` and ``postprocessor``.
            inputs: The predecessors, as one list or as separate arguments.
            terms: Returns for a node its operations, each with the index of the node that it reads.
        """
        predecessors = list(inputs[0]) if len(inputs) == 1 and isinstance(inputs[0], (list, tuple)) else list(inputs)
        states = list(owner.preprocessor(predecessors))
        for node in self.computed():
            states.append(sum(module(states[source]) for module, source in terms(node)))
        return owner.postprocessor(torch.cat(states[self.predecessors :], self.concat_dim), predecessors)


class EdgeCell(Chooser):
    """A cell in which every edge has its own module for each operation, like a ``Cell`` in NNI's supernets.

    An operation on a predecessor may differ from the same operation on a node (by its stride, in a reduction cell), so
    each edge has its own weights. Source: Liu et al., "DARTS: Differentiable Architecture Search", ICLR 2019.
    """

    def __init__(
        self,
        shape: CellShape,
        candidates: Callable[[int, int], Mapping[str, nn.Module]],
        preprocessor: Any,
        postprocessor: Any,
    ) -> None:
        """Build the modules of all edges.

        Args:
            shape: The connections.
            candidates: Makes the modules of an edge, by operation, from (node, node that is read).
            preprocessor: Maps the list of predecessors to a list of the same length.
            postprocessor: Called with the output of the cell and the predecessors.
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
        """Run the chosen operations; the inputs are the predecessors, as one list or as separate arguments."""
        choices = choices_now()
        return self.shape.run(self, inputs, lambda node: self._terms(node, choices))

    def labels(self) -> tuple[str, ...]:
        """Return the decisions of all nodes."""
        return tuple(itertools.chain(*(slot for node in self.shape.computed() for slot in self.shape.slots(node))))

    def branches(self) -> Sequence[Branch]:
        """Return all modules of all edges."""
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
        """Connect the operations.

        Args:
            shape: The connections.
            terms: For every computed node its operations, each with the index of the node that it reads.
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
        """Run the cell; the inputs are the predecessors, as one list or as separate arguments."""
        return self.shape.run(self, inputs, self._terms)
