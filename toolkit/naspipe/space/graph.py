"""The drawing of an architecture in a report: nodes, and edges with labels."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ArchitectureGraph:
    """A drawing of one architecture: one graph, or several below each other.

    Attributes:
        nodes: Name, label and place (column, row) of every node; rows are numbered upwards.
        edges: Names of an edge's start and end node, and its label.
        titles: Text and place (column, row) of titles; the text starts at the place.
        note: An explanation of the drawing, in one sentence.
    """

    nodes: tuple[tuple[str, str, float, float], ...]
    edges: tuple[tuple[str, str, str], ...]
    titles: tuple[tuple[str, float, float], ...] = ()
    note: str = ""


def chain_graph(steps: Sequence[tuple[str, str]]) -> ArchitectureGraph:
    """Return a chain: a node for each (name, label), and an edge from each node to the next."""
    # From top to bottom, since labels of any length fit beside the nodes.
    nodes = tuple((name, f"{name}: {label}", 0.0, -float(row)) for row, (name, label) in enumerate(steps))
    names = [name for name, _ in steps]
    return ArchitectureGraph(nodes, tuple((a, b, "") for a, b in itertools.pairwise(names)))
