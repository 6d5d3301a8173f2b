"""The graph of a converted model by torch.fx; a module without choosers is one node, and so is a chooser."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import fx, nn

from naspipe.errors import SpaceError
from naspipe_spaces.nni_bridge.conversion import holds_choices, is_chooser


def trace(model: nn.Module) -> fx.Graph | None:
    """Return the graph of a model.

    A submodule whose forward cannot be traced, because it depends on the values of its input, becomes one node.

    Args:
        model: A converted model, called with one value.

    Returns:
        The graph, or None if the model's own forward cannot be traced.

    Raises:
        SpaceError: Its forward does not take exactly one value.
    """
    _require_one_input(model)
    opaque: set[int] = set()
    while True:
        training = _trace_once(model, opaque, training=True)
        evaluation = _trace_once(model, opaque, training=False)
        if training.blamed is None and evaluation.blamed is None and str(training.graph) == str(evaluation.graph):
            return training.graph
        blamed = training.blamed or evaluation.blamed
        if blamed is None:
            # The forward differs between training and evaluation mode.
            readers = [m for m in (*training.readers, *evaluation.readers) if m is not model and id(m) not in opaque]
            blamed = readers[0] if readers else model
        if blamed is model:
            return None
        opaque.add(id(blamed))


def _require_one_input(model: nn.Module) -> None:
    required = [
        parameter.name
        for parameter in inspect.signature(type(model).forward).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ][1:]
    if len(required) != 1:
        raise SpaceError(
            f"the forward of {type(model).__name__} must take one value, the batch's input, but takes {required!r}. "
            "Pass several tensors as one tuple or dict."
        )


class _Attempt:
    """The result of one trace.

    Attributes:
        graph: The graph, or None if the trace failed.
        blamed: The module in which the trace failed, or None.
        readers: The modules that read their training flag.
    """

    def __init__(self) -> None:
        self.graph: fx.Graph | None = None
        self.blamed: nn.Module | None = None
        self.readers: list[nn.Module] = []


class _Mode(int):
    """A training flag that notes its readers."""

    note: Callable[[], None]

    def __bool__(self) -> bool:
        self.note()
        return self != 0


class _Tracer(fx.Tracer):
    """Traces into modules that contain choosers, and makes other modules one node."""

    def __init__(self, opaque: set[int]) -> None:
        super().__init__()
        self._opaque = opaque
        self.stack: list[nn.Module] = []

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Tell whether a module is one node."""
        return id(m) in self._opaque or is_chooser(m) or not holds_choices(m)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a module; after an exception, the stack shows the module that raised it."""
        self.stack.append(m)
        result = super().call_module(m, forward, args, kwargs)
        self.stack.pop()
        return result


def _trace_once(model: nn.Module, opaque: set[int], training: bool) -> _Attempt:
    attempt = _Attempt()
    tracer = _Tracer(opaque)
    modes = {module: module.training for module in model.modules()}
    optional = {
        parameter.name: parameter.default
        for parameter in inspect.signature(type(model).forward).parameters.values()
        if parameter.default is not parameter.empty
    }
    try:
        for module in modes:
            if module is model or not tracer.is_leaf_module(module, ""):
                mode = _Mode(training)
                mode.note = lambda module=module: attempt.readers.append(module)  # type: ignore[misc]
                module.__dict__["training"] = mode
        attempt.graph = tracer.trace(model, optional or None)
        _drop_optional(attempt.graph)
    except Exception:
        # Any exception of a forward on placeholders means that it cannot be traced.
        attempt.blamed = tracer.stack[-1] if tracer.stack else model
    finally:
        for module, before in modes.items():
            module.__dict__["training"] = before
    return attempt


def _drop_optional(graph: fx.Graph) -> None:
    """Remove the placeholders of optional arguments, with the checks that fx adds for them."""
    extra = [node for node in graph.nodes if node.op == "placeholder"][1:]
    dependent = set(extra)
    for node in graph.nodes:
        if any(source in dependent for source in node.all_input_nodes):
            dependent.add(node)
    for node in reversed(list(graph.nodes)):
        if node in dependent:
            graph.erase_node(node)
