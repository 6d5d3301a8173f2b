"""Analysis of a model space: done once in a process, on a model without memory for its weights."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from naspipe.errors import SpaceError
from naspipe.keys import keyed_random
from naspipe.space import Decision, SearchSpace
from naspipe.usercode import calling
from naspipe.wording import listing
from naspipe_spaces.nni_bridge.chain import Chain
from naspipe_spaces.nni_bridge.conversion import Conversion
from naspipe_spaces.nni_bridge.decisions import make_decisions, options_of
from naspipe_spaces.nni_bridge.sharing import find_conditions, find_places, shared_fraction, shares_between_options
from naspipe_spaces.nni_bridge.superkernels import Superkernel
from naspipe_spaces.nni_bridge.tracing import trace

PAIRS = 20
"""Number of pairs of random architectures whose common parameters are counted."""


@dataclass(frozen=True)
class Analysis:
    """The result of the analysis of a model space.

    Attributes:
        mutables: NNI's mutable of every label.
        constraints: NNI's constraints.
        decisions: The decisions.
        warnings: Messages to the user.
    """

    mutables: Mapping[str, Any]
    constraints: tuple[Any, ...]
    decisions: tuple[Decision, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """A model space, as a configuration gives it.

    Attributes:
        nni: The result of ``load_nni``.
        cls: The subclass of ``ModelSpace``.
        arguments: The arguments of its constructor.
        values: Number of values that may pass between two blocks, at most; None: as few as possible.
    """

    nni: SimpleNamespace
    cls: type
    arguments: Mapping[str, Any]
    values: int | None

    def build(self) -> Any:
        """Build a new model.

        Raises:
            SpaceError: Its constructor raises an error.
        """
        with calling(f"{self.cls.__name__}(**arguments)", SpaceError):
            return self.cls(**copy.deepcopy(dict(self.arguments)))

    def convert(self, model: nn.Module) -> nn.Module:
        """Convert a model, in place, to one with choosers."""
        return Conversion(self.nni, model).run()

    def divide(self, converted: nn.Module) -> list[nn.Module]:
        """Divide a converted model into a chain of modules; it stays one module if its forward cannot be traced."""
        graph = trace(converted)
        return [converted] if graph is None else Chain(converted, graph, self.values).modules


_FOUND: dict[tuple[type, str, int | None], Analysis] = {}


def analyse(source: Source) -> Analysis:
    """Return the analysis of a model space, from the cache of this process if it is there.

    Raises:
        SpaceError: The model cannot be built, or has a choice that cannot be converted.
    """
    key = (source.cls, json.dumps(source.arguments, sort_keys=True, default=repr), source.values)
    if key not in _FOUND:
        _FOUND[key] = _analyse(source)
    return _FOUND[key]


def _analyse(source: Source) -> Analysis:
    name = source.cls.__name__
    model = _build_without_memory(source)
    simple = model.simplify()
    constraint = source.nni.mutable.annotation.Constraint
    mutables = {label: mutable for label, mutable in simple.items() if not isinstance(mutable, constraint)}
    constraints = tuple(mutable for mutable in simple.values() if isinstance(mutable, constraint))
    options = {label: options_of(source.nni, label, mutable) for label, mutable in mutables.items()}
    converted = source.convert(model)
    conditions = find_conditions(converted)
    unseen = [label for label in mutables if label not in conditions]
    if unseen:
        raise SpaceError(
            f"every decision of {name} must belong to a LayerChoice, InputChoice, Repeat, Cell or an argument of one "
            f"of NNI's Mutable... modules, but {listing(unseen)} does not."
        )
    decisions = tuple(make_decisions(options, conditions))
    return Analysis(mutables, constraints, decisions, tuple(_warnings(source, converted, decisions)))


def _build_without_memory(source: Source) -> Any:
    """Build a model on the meta device, or on the CPU if that fails."""
    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                return source.build()
        except SpaceError:
            # The constructor may read the values of tensors.
            return source.build()


class _Draws(SearchSpace):
    """A space for random draws only; it has no blocks."""

    def blocks(self) -> Iterator[nn.Module]:
        """Yield nothing."""
        return iter(())


def _warnings(source: Source, converted: nn.Module, decisions: tuple[Decision, ...]) -> Iterator[str]:
    name = source.cls.__name__
    if len(source.divide(converted)) == 1:
        yield (
            f"{name} is one block, so it cannot be pipelined: its forward cannot be traced, or its choices share "
            "parameters throughout. Write its forward as calls of modules and tensor operations."
        )
    places = find_places(converted)
    if shares_between_options(places) or any(isinstance(module, Superkernel) for module in converted.modules()):
        space = _Draws(decisions)
        some = [space.random_architecture(keyed_random(0, "overlap", number)) for number in range(PAIRS + 1)]
        yield (
            f"options of {name} use the same weights: two random subnets have "
            f"{100 * shared_fraction(places, some):.0f} % of their parameters in common. Subnets that share weights "
            "wait for each other, except for always-active ones within training.delay."
        )
