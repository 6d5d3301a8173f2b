"""The parameters of a converted model, with the conditions under which architectures use them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from naspipe.space import Architecture
from naspipe_spaces.nni_bridge.choosers import Choices, Chooser, Condition
from naspipe_spaces.nni_bridge.conversion import holds_choices


@dataclass(frozen=True)
class Place:
    """A module whose parameters are used under the same conditions.

    Attributes:
        path: Path of the module.
        module: The module.
        conditions: All of them must hold, the outer ones first; without conditions the module always runs.
        whole: Whether the parameters of its submodules are included; else only its own ones are.
    """

    path: str
    module: nn.Module
    conditions: tuple[Condition, ...]
    whole: bool

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters."""
        return list(self.module.parameters(recurse=self.whole))

    def is_used(self, choices: Choices) -> bool:
        """Tell whether an architecture runs the module."""
        return all(condition.holds(choices) for condition in self.conditions)


class Group(nn.Module):
    """A layer's parameters that are not a module of their own; it is never called."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__()
        self.group = nn.ParameterList(parameters)


@dataclass(frozen=True)
class StrictLayer:
    """A layer that only some architectures use.

    Attributes:
        module: A module with exactly the parameters of the layer.
        place: Their place, with the conditions.
    """

    module: nn.Module
    place: Place


def find_places(root: nn.Module) -> list[Place]:
    """Return all places with parameters in a module; a module that occurs twice has two places."""
    return [place for place in _walk(root, "", ()) if place.parameters()]


def find_layers(root: nn.Module) -> dict[str, StrictLayer]:
    """Return the strict layers of a module, by path.

    Parameters with several places belong to no layer, so they are always active.
    """
    places = find_places(root)
    counts = Counter(id(parameter) for place in places for parameter in place.parameters())
    layers: dict[str, StrictLayer] = {}
    for place in places:
        own = [parameter for parameter in place.parameters() if counts[id(parameter)] == 1]
        if place.conditions and own:
            whole = place.whole and len(own) == len(place.parameters())
            layers[place.path or "module"] = StrictLayer(place.module if whole else Group(own), place)
    return layers


def shares_between_options(places: Sequence[Place]) -> bool:
    """Tell whether a parameter under a condition has more than one place."""
    counts = Counter(id(parameter) for place in places for parameter in place.parameters())
    return any(counts[id(p)] > 1 for place in places if place.conditions for p in place.parameters())


def shared_fraction(places: Sequence[Place], architectures: Sequence[Architecture]) -> float:
    """Return the fraction of parameters that two subnets have in common (Jaccard index), averaged over pairs.

    A parameter counts as a whole even if an architecture uses only some of its elements, since an update changes the
    whole tensor.

    Args:
        places: The places of the whole model.
        architectures: At least two; each is compared with the next.
    """
    sizes = [sum(parameter.numel() for parameter in place.parameters()) for place in places]
    used = [[place.is_used(architecture) for place in places] for architecture in architectures]
    fractions = []
    for one, other in itertools.pairwise(used):
        common = sum(size for size, a, b in zip(sizes, one, other, strict=True) if a and b)
        united = sum(size for size, a, b in zip(sizes, one, other, strict=True) if a or b)
        fractions.append(common / max(united, 1))
    return sum(fractions) / len(fractions)


def find_conditions(root: nn.Module) -> dict[str, list[tuple[Condition, ...]]]:
    """Return for every decision the conditions under which it is looked up, for each place."""
    found: dict[str, list[tuple[Condition, ...]]] = {}
    for chooser, conditions in _choosers(root, ()):
        for label in chooser.labels():
            found.setdefault(label, []).append(conditions)
    return found


def _walk(module: nn.Module, path: str, conditions: tuple[Condition, ...]) -> Iterator[Place]:
    branches = module.branches() if isinstance(module, Chooser) else ()
    if not holds_choices(module) or (isinstance(module, Chooser) and not branches):
        yield Place(path, module, conditions, whole=True)
        return
    yield Place(path, module, conditions, whole=False)
    for name, child, below in _below(module, conditions):
        yield from _walk(child, f"{path}.{name}" if path else name, below)


def _choosers(module: nn.Module, conditions: tuple[Condition, ...]) -> Iterator[tuple[Chooser, tuple[Condition, ...]]]:
    if isinstance(module, Chooser):
        yield module, conditions
    for _, child, below in _below(module, conditions):
        if holds_choices(child):
            yield from _choosers(child, below)


def _below(
    module: nn.Module, conditions: tuple[Condition, ...]
) -> Iterator[tuple[str, nn.Module, tuple[Condition, ...]]]:
    """Yield path, module and conditions of the children of a module; for a chooser, also of its branches."""
    branches = module.branches() if isinstance(module, Chooser) else ()
    yield from ((branch.path, branch.module, (*conditions, branch.condition)) for branch in branches)
    inside = {id(part) for branch in branches for part in (branch.module, *_owners(module, branch.path))}
    for name, child in module._modules.items():
        if child is not None and id(child) not in inside:
            yield name, child, conditions


def _owners(module: nn.Module, path: str) -> list[nn.Module]:
    """Return the containers between a module and the submodule at a path."""
    found = []
    for part in path.split(".")[:-1]:
        child = module._modules[part]
        assert child is not None
        found.append(child)
        module = child
    return found
