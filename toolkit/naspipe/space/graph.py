"""What a report draws of an architecture: nodes, and edges with labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ArchitectureGraph:
    """A drawing of one architecture, left to right.

    Attributes:
        nodes: Name, label and place (column, row) of every node; y grows upwards.
        edges: Name of the node an edge leaves, of the node it enters, and its label.
    """

    nodes: tuple[tuple[str, str, float, float], ...]
    edges: tuple[tuple[str, str, str], ...]


def chain_graph(steps: Sequence[tuple[str, str]]) -> ArchitectureGraph:
    """Return a chain: one node for each (name, label), an edge from each to the next."""
    nodes = tuple(
        (name, f"{name}: {label}", float(column), 0.0) for column, (name, label) in enumerate(steps)
    )
    names = [name for name, _ in steps]
    return ArchitectureGraph(
        nodes, tuple((a, b, "") for a, b in zip(names, names[1:], strict=False))
    )
