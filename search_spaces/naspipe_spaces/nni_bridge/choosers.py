"""Choosers: modules that look up their decision in the architecture of the current call.

They replace NNI's ``LayerChoice``, ``InputChoice`` and ``Repeat``, and compute the same. They have no state, so any
number of subnets may be in flight. Shapes are those of the modules in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from naspipe.space import Option

Choices = Mapping[str, Option]
"""Options by the names of their decisions: an architecture, or some of its decisions."""

_CHOICES: ContextVar[Choices] = ContextVar("naspipe_nni_choices")


@contextmanager
def choosing(choices: Choices) -> Iterator[None]:
    """Let all choosers that are called within this context make these choices."""
    token = _CHOICES.set(choices)
    try:
        yield
    finally:
        _CHOICES.reset(token)


def choices_now() -> Choices:
    """Return the choices of the current call."""
    return _CHOICES.get()


@dataclass(frozen=True)
class Condition:
    """The condition under which a branch runs.

    Attributes:
        labels: The decisions that it depends on.
        holds: Tells whether the branch runs for given options of these decisions.
    """

    labels: tuple[str, ...]
    holds: Callable[[Choices], bool]


@dataclass(frozen=True)
class Branch:
    """A submodule that only some architectures run.

    Attributes:
        path: Its path within the chooser.
        module: The submodule.
        condition: The condition under which it runs.
    """

    path: str
    module: nn.Module
    condition: Condition


Fix = Callable[[nn.Module], nn.Module]
"""Returns a copy of a submodule without choices."""


class Chooser(nn.Module):
    """A module whose forward depends on decisions."""

    def labels(self) -> tuple[str, ...]:
        """Return the decisions of this chooser, without those of its submodules."""
        raise NotImplementedError

    def branches(self) -> Sequence[Branch]:
        """Return the submodules that run under a condition; other submodules always run."""
        return ()

    def fixed(self, choices: Choices, fix: Fix) -> nn.Module:
        """Return a copy of the module without the choice."""
        raise NotImplementedError


class Switch(Chooser):
    """A choice among modules, which get the arguments of the call; it replaces ``LayerChoice``."""

    def __init__(self, label: str, candidates: Mapping[Option, nn.Module]) -> None:
        """Connect the options of a decision with their modules.

        Args:
            label: The decision.
            candidates: A module for each option.
        """
        super().__init__()
        self._label = label
        self._options = tuple(candidates)
        # add_module would refuse options with the name of a method.
        self._modules.update({str(option): module for option, module in candidates.items()})

    def module_of(self, option: Option) -> nn.Module:
        """Return the module of an option."""
        module = self._modules[str(option)]
        assert module is not None
        return module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module of the chosen option."""
        return self.module_of(choices_now()[self._label])(*args, **kwargs)

    def labels(self) -> tuple[str, ...]:
        """Return the one decision."""
        return (self._label,)

    def branches(self) -> Sequence[Branch]:
        """Return the module of every option."""
        return [
            Branch(str(option), self.module_of(option), Condition((self._label,), self._chooses(option)))
            for option in self._options
        ]

    def _chooses(self, option: Option) -> Callable[[Choices], bool]:
        return lambda choices: choices[self._label] == option

    def fixed(self, choices: Choices, fix: Fix) -> nn.Module:
        """Return the module of the chosen option."""
        return fix(self.module_of(choices[self._label]))


class InputSwitch(Chooser):
    """A choice among inputs, which are then reduced to one; it replaces ``InputChoice``."""

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
        """Return the reduction of the chosen inputs."""
        return FixedInput(self.reduction, choices[self._label])


class FixedInput(nn.Module):
    """Fixed inputs among several, reduced to one."""

    def __init__(self, reduction: str, option: Option) -> None:
        super().__init__()
        self.reduction = reduction
        self.option = option

    def forward(self, inputs: Sequence[Tensor]) -> Any:
        """Choose and reduce."""
        return reduce_inputs(self.reduction, inputs, self.option)


def reduce_inputs(reduction: str, inputs: Sequence[Tensor], option: Option) -> Any:
    """Choose inputs and reduce them, in the order of NNI's ``ChosenInputs``."""
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
    """A number of repetitions: a decision, or an expression of several decisions."""

    labels: tuple[str, ...]

    def __call__(self, choices: Choices) -> int:
        """Return the number for given choices."""


class Gate(Chooser):
    """A module that runs only if the depth reaches it; otherwise the input passes unchanged."""

    def __init__(self, module: nn.Module, index: int, depth: Depth) -> None:
        """Wrap a module.

        Args:
            module: The module, called with one value.
            index: The module runs if the depth is greater than this.
            depth: The depth.
        """
        super().__init__()
        self.module = module
        self.index = index
        self.depth = depth

    def _runs(self, choices: Choices) -> bool:
        return self.depth(choices) > self.index

    def forward(self, x: Any) -> Any:
        """Run the module, or return the input."""
        return self.module(x) if self._runs(choices_now()) else x

    def labels(self) -> tuple[str, ...]:
        """Return the decisions of the depth."""
        return self.depth.labels

    def branches(self) -> Sequence[Branch]:
        """Return the module as a branch."""
        return [Branch("module", self.module, Condition(self.depth.labels, self._runs))]

    def fixed(self, choices: Choices, fix: Fix) -> nn.Module:
        """Return the module, or an identity."""
        return fix(self.module) if self._runs(choices) else nn.Identity()


class Repeated(nn.Module):
    """A sequence of modules, with a ``Gate`` around each beyond the smallest depth; it replaces ``Repeat``."""

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Any) -> Any:
        """Run the modules."""
        for block in self.blocks:
            x = block(x)
        return x
