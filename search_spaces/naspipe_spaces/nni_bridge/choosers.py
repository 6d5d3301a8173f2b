"""Modules that choose: each looks its decision up in the architecture of the call that it is in.

They stand where NNI's ``LayerChoice``, ``InputChoice`` and ``Repeat`` stood, compute the same, and keep
no state: any number of subnets may be in flight. Shapes are those of whatever they hold.
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
