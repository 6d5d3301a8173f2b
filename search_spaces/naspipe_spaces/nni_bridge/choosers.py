"""Modules that choose: each looks its decision up in the architecture of the call that it is in.

They stand where NNI's ``LayerChoice``, ``InputChoice``, ``Repeat`` and ``Cell`` stood, compute the same, and keep
no state: any number of subnets may be in flight. Shapes are those of whatever they hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from naspipe.space import Option

Choices = Mapping[str, Option]
"""Options by the name of their decision: an architecture, or a part of one."""

_CHOICES: ContextVar[Choices] = ContextVar("naspipe_nni_choices")


@contextmanager
def choosing(choices: Choices) -> Iterator[None]:
    """Let the choosers called within make these choices."""
    token = _CHOICES.set(choices)
    try:
        yield
    finally:
        _CHOICES.reset(token)


def choices_now() -> Choices:
    """Return the choices of the call that this is in."""
    return _CHOICES.get()


@dataclass(frozen=True)
class Condition:
    """When a branch runs.

    Attributes:
        labels: The decisions it depends on.
        holds: Tells whether it runs under given options of them.
    """

    labels: tuple[str, ...]
    holds: Callable[[Choices], bool]


@dataclass(frozen=True)
class Branch:
    """A submodule that only some architectures run.

    Attributes:
        path: Its path within the chooser.
        module: The submodule.
        condition: When it runs.
    """

    path: str
    module: nn.Module
    condition: Condition


Fix = Callable[[nn.Module], nn.Module]
"""Returns a copy of a submodule without choices."""


class Chooser(nn.Module):
    """A module whose forward depends on decisions."""

    def labels(self) -> tuple[str, ...]:
        """Return the decisions that it looks up itself."""
        raise NotImplementedError

    def branches(self) -> Sequence[Branch]:
        """Return the submodules that run under a condition; all others always run."""
        return ()

    def fixed(self, choices: Choices, fix: Fix) -> nn.Module:
        """Return the module without the choice, made of copies."""
        raise NotImplementedError


class Switch(Chooser):
    """One of several candidates, called with whatever it is called with: a ``LayerChoice``."""

    def __init__(self, label: str, candidates: Mapping[Option, nn.Module]) -> None:
        """Take the candidates.

        Args:
            label: The decision.
            candidates: A module for each of its options.
        """
        super().__init__()
        self._label = label
        self._options = tuple(candidates)
        # Not add_module, which refuses candidates with the name of a method.
        self._modules.update({str(option): module for option, module in candidates.items()})

    def candidate(self, option: Option) -> nn.Module:
        """Return the module of an option."""
        module = self._modules[str(option)]
        assert module is not None
        return module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the chosen candidate."""
        return self.candidate(choices_now()[self._label])(*args, **kwargs)

    def labels(self) -> tuple[str, ...]:
        """Return the one decision."""
        return (self._label,)

    def branches(self) -> Sequence[Branch]:
        """Return the candidates."""
        return [
            Branch(str(option), self.candidate(option), Condition((self._label,), self._chooses(option)))
            for option in self._options
        ]

    def _chooses(self, option: Option) -> Callable[[Choices], bool]:
        return lambda choices: choices[self._label] == option

    def fixed(self, choices: Choices, fix: Fix) -> nn.Module:
        """Return the chosen candidate."""
        return fix(self.candidate(choices[self._label]))


class InputSwitch(Chooser):
    """Some of several inputs, reduced to one: an ``InputChoice``."""

    def __init__(self, label: str, reduction: str) -> None:
        """Describe the choice.

        Args:
            label: The decision; an option is the index of an input, or a tuple of them.
            reduction: ``sum``, ``mean``, ``concat`` (along dimension 1) or ``none``.
        """
        super().__init__()
        self._label = label
        self.reduction = reduction

    def forward(self, inputs: Sequence[Tensor]) -> Any:
        """Choose and reduce."""
        return reduce_inputs(self.reduction, inputs, choices_now()[self._label])

    def labels(self) -> tuple[str, ...]:
        """Return the one decision."""
        return (self._label,)

    def fixed(self, choices: Choices, fix: Fix) -> nn.Module:
        """Return the same for one option."""
        return FixedInput(self.reduction, choices[self._label])


class FixedInput(nn.Module):
    """Given ones of several inputs, reduced to one."""

    def __init__(self, reduction: str, option: Option) -> None:
        super().__init__()
        self.reduction = reduction
        self.option = option

    def forward(self, inputs: Sequence[Tensor]) -> Any:
        """Choose and reduce."""
        return reduce_inputs(self.reduction, inputs, self.option)


def reduce_inputs(reduction: str, inputs: Sequence[Tensor], option: Option) -> Any:
    """Choose inputs and reduce them in the order that NNI's ``ChosenInputs`` does."""
    chosen = [inputs[index] for index in (option if isinstance(option, tuple) else (option,))]  # type: ignore[index]
    if reduction == "none":
        return chosen
    if len(chosen) <= 1:
        return chosen[0] if chosen else None
    if reduction == "concat":
        return torch.cat(chosen, dim=1)
    total = sum(chosen)
    return total / len(chosen) if reduction == "mean" else total


class Depth(Protocol):
    """A number of repetitions: a decision, or an expression of several."""

    labels: tuple[str, ...]

    def __call__(self, choices: Choices) -> int:
        """Return the number under given choices."""


class Gate(Chooser):
    """A module that runs only if the depth reaches it, and else passes its input on."""

    def __init__(self, module: nn.Module, index: int, depth: Depth) -> None:
        """Wrap a module.

        Args:
            module: Called with one value.
            index: It runs if the depth is greater.
            depth: The depth.
        """
        super().__init__()
        self.module = module
        self.index = index
        self.depth = depth

    def _runs(self, choices: Choices) -> bool:
        return self.depth(choices) > self.index

    def forward(self, x: Any) -> Any:
        """Run the module, or pass the input on."""
        return self.module(x) if self._runs(choices_now()) else x

    def labels(self) -> tuple[str, ...]:
        """Return the decisions of the depth."""
        return self.depth.labels

    def branches(self) -> Sequence[Branch]:
        """Return the module."""
        return [Branch("module", self.module, Condition(self.depth.labels, self._runs))]

    def fixed(self, choices: Choices, fix: Fix) -> nn.Module:
        """Return the module, or an identity."""
        return fix(self.module) if self._runs(choices) else nn.Identity()


class Repeated(nn.Module):
    """Modules one after another; those beyond the smallest depth are ``Gate``s: a ``Repeat``."""

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Any) -> Any:
        """Run them."""
        for block in self.blocks:
            x = block(x)
        return x


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
