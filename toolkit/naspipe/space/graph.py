"""What a report draws of an architecture: nodes, and edges with labels."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ArchitectureGraph:
    """A drawing of one architecture, or of its parts one below the other.

    Attributes:
        nodes: Name, label and place (column, row) of every node; rows are numbered upwards.
        edges: Name of the node an edge leaves, of the node it enters, and its label.
        titles: Text and place (column, row) of the titles of parts; the text starts there.
        note: What a reader must know to read the drawing, in one sentence.
    """

    nodes: tuple[tuple[str, str, float, float], ...]
    edges: tuple[tuple[str, str, str], ...]
    titles: tuple[tuple[str, float, float], ...] = ()
    note: str = ""


def chain_graph(steps: Sequence[tuple[str, str]]) -> ArchitectureGraph:
    """Return a chain: one node for each (name, label), an edge from each to the next."""
    # Downwards, since labels of any length fit beside the nodes.
    nodes = tuple((name, f"{name}: {label}", 0.0, -float(row)) for row, (name, label) in enumerate(steps))
    names = [name for name, _ in steps]
    return ArchitectureGraph(nodes, tuple((a, b, "") for a, b in itertools.pairwise(names)))
