"""A graph as a chain of modules, with boundaries where few values pass."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

from torch import fx, nn

from naspipe_spaces.nni_bridge.conversion import holds_choices


class Chain:
    """The graph of a model as a chain of modules; each but the last returns all values that later modules need.

    This is one value, or a tuple of several.

    Attributes:
        modules: The modules, in order; together they have all parameters that the graph uses.
        widths: Number of values that pass at each boundary.
    """

    def __init__(self, model: nn.Module, graph: fx.Graph, most: int | None) -> None:
        """Divide the graph.

        Args:
            model: The converted model.
            graph: Its graph.
            most: Number of values that may pass at a boundary, at most; by default the smallest number that some
                boundary between two choices has.
        """
        nodes = list(graph.nodes)
        self._inputs, self._output = nodes[0], nodes[-1]
        self._nodes = nodes[1:-1]
        self._model = model
        self._places = {node: place for place, node in enumerate(self._nodes)}
        boundaries = self._choose(most)
        bounds = [0, *boundaries, len(self._nodes)]
        self.widths = [len(self._alive(boundary)) for boundary in boundaries]
        self.modules = [self._module(start, stop) for start, stop in itertools.pairwise(bounds)]

    def _last_use(self, node: fx.Node) -> int:
        return max((len(self._nodes) if user is self._output else self._places[user] for user in node.users), default=0)

    def _alive(self, place: int) -> list[fx.Node]:
        """Return the values that are made before a place in the graph, and used there or later."""
        return [node for node in (self._inputs, *self._nodes[:place]) if self._last_use(node) >= place]

    def _choose(self, most: int | None) -> list[int]:
        """Return the places of the boundaries."""
        choosing = [place for place, node in enumerate(self._nodes) if self._chooses(node)]
        if not choosing:
            return []
        allowed = self._allowed()
        widths = {place: len(self._alive(place)) for place in sorted(allowed)}

        def best(start: int, stop: int, late: bool = False) -> int | None:
            inside = [place for place in widths if start < place <= stop]
            return min(reversed(inside) if late else inside, key=widths.__getitem__, default=None)

        between = [best(one, other) for one, other in itertools.pairwise(choosing)]
        found = [place for place in between if place is not None]
        if most is None:
            most = min((widths[place] for place in found), default=1)
        ends = [best(0, choosing[0], late=True), best(choosing[-1], len(self._nodes) - 1)]
        return sorted(place for place in (*found, *ends) if place is not None and widths[place] <= most)

    def _chooses(self, node: fx.Node) -> bool:
        return node.op == "call_module" and holds_choices(self._model.get_submodule(str(node.target)))

    def _allowed(self) -> set[int]:
        """Return the places where only tensors pass, and that separate no two uses of one parameter."""
        allowed = set(range(1, len(self._nodes)))
        for node in self._nodes:
            if self._is_number(node):
                allowed -= set(range(self._places[node] + 1, self._last_use(node) + 1))
        uses: dict[int, list[int]] = {}
        for place, node in enumerate(self._nodes):
            for parameter in self._parameters(node):
                uses.setdefault(parameter, []).append(place)
        for places in uses.values():
            allowed -= set(range(places[0] + 1, places[-1] + 1))
        return allowed

    def _parameters(self, node: fx.Node) -> list[int]:
        if node.op == "call_module":
            return [id(parameter) for parameter in self._model.get_submodule(str(node.target)).parameters()]
        if node.op == "get_attr":
            return [id(operator.attrgetter(str(node.target))(self._model))]
        return []

    def _is_number(self, node: fx.Node) -> bool:
        """Tell whether a value may be something other than a tensor, such as a shape or a result of numbers."""
        if node.op == "call_method" and node.target in ("size", "dim", "numel", "stride", "item"):
            return True
        if node.op != "call_function":
            return False
        if node.target is getattr:
            return node.args[1] in ("shape", "dtype", "device", "ndim")
        sources = node.all_input_nodes
        return bool(sources) and all(self._is_number(source) for source in sources)

    def _module(self, start: int, stop: int) -> nn.Module:
        """Return the module of the nodes from ``start`` to ``stop``."""
        graph = fx.Graph()
        values = self._unpack(graph, self._alive(start) if start else [self._inputs])
        for node in self._nodes[start:stop]:
            values[node] = graph.node_copy(node, values.__getitem__)
        if stop == len(self._nodes):
            graph.output(fx.map_arg(self._output.args[0], values.__getitem__))
        else:
            alive = [values[node] for node in self._alive(stop)]
            graph.output(alive[0] if len(alive) == 1 else tuple(alive))
        return fx.GraphModule(self._model, graph)

    @staticmethod
    def _unpack(graph: fx.Graph, passed: Sequence[fx.Node]) -> dict[fx.Node, Any]:
        payload = graph.placeholder("payload")
        if len(passed) == 1:
            return {passed[0]: payload}
        return {node: graph.call_function(operator.getitem, (payload, i)) for i, node in enumerate(passed)}
