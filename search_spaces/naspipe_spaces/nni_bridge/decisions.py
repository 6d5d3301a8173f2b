"""Decisions from the labels of a model space, and the conversion of options from and to NNI."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from naspipe.errors import SpaceError
from naspipe.space import Decision, Option
from naspipe.usercode import calling
from naspipe_spaces.nni_bridge.choosers import Condition

MOST_OPTIONS = 4_096
"""The largest number of options that a choice of several inputs may have."""


def make_decisions(
    options: Mapping[str, tuple[Option, ...]], conditions: Mapping[str, list[tuple[Condition, ...]]]
) -> list[Decision]:
    """Return the decisions, parents before their children.

    Args:
        options: The options of each label.
        conditions: For each label, the conditions of every place in which it is looked up.
    """
    whens = {label: _when(label, options, conditions[label]) for label in options}
    ordered: list[Decision] = []
    waiting = list(options)
    while waiting:
        for label in waiting:
            when = whens[label]
            if when is None or any(decision.name == when[0] for decision in ordered):
                ordered.append(Decision(label, options[label], when=when))
                waiting.remove(label)
                break
        else:
            # In a circle of parents, the first decision exists always. That is correct, but not minimal.
            whens[waiting[0]] = None
    return ordered


def _when(
    label: str, options: Mapping[str, tuple[Option, ...]], places: list[tuple[Condition, ...]]
) -> tuple[str, tuple[Option, ...]] | None:
    """Return the parent of a decision and the options under which it exists; None if it always exists."""
    shared = [{c.labels[0] for c in place if len(c.labels) == 1 and c.labels[0] != label} for place in places]
    if not shared or not all(shared):
        return None
    # The innermost decision that is in the conditions of all places.
    for condition in reversed(places[0]):
        parent = condition.labels[0]
        if len(condition.labels) == 1 and all(parent in labels for labels in shared):
            taken = tuple(
                option
                for option in options[parent]
                if any(all(c.holds({parent: option}) for c in place if c.labels == (parent,)) for place in places)
            )
            return (parent, taken) if taken and len(taken) < len(options[parent]) else None
    return None


def options_of(nni: SimpleNamespace, label: str, mutable: Any) -> tuple[Option, ...]:
    """Return the options of a label.

    Raises:
        SpaceError: They are not listed values, or too many.
    """
    if isinstance(mutable, nni.mutable.Categorical):
        with calling(f"the options of decision {label!r}", SpaceError):
            return Decision(label, mutable.values).options
    if isinstance(mutable, nni.mutable.CategoricalMultiple):
        counts = range(len(mutable.values) + 1) if mutable.n_chosen is None else [mutable.n_chosen]
        subsets = itertools.chain.from_iterable(itertools.combinations(mutable.values, count) for count in counts)
        found = tuple(itertools.islice(subsets, MOST_OPTIONS + 1))
        if len(found) > MOST_OPTIONS:
            raise SpaceError(
                f"decision {label!r} must have at most {MOST_OPTIONS} options, but choosing "
                f"{'any number' if mutable.n_chosen is None else mutable.n_chosen} of {len(mutable.values)} has more."
            )
        return tuple(subset[0] for subset in found) if mutable.n_chosen == 1 else found
    raise SpaceError(
        f"decision {label!r} must be a choice among listed values (nni.choice), but is {mutable!r}. "
        "Choose some values of its range."
    )


def to_nni(nni: SimpleNamespace, mutable: Any, option: Option) -> Any:
    """Return an option as a value of NNI."""
    if isinstance(mutable, nni.mutable.CategoricalMultiple):
        return list(option) if isinstance(option, tuple) else [option]
    return next((value for value in mutable.values if _same(value, option)), option)


def from_nni(nni: SimpleNamespace, mutable: Any, value: Any) -> Option:
    """Return a value of NNI as an option."""
    if isinstance(mutable, nni.mutable.CategoricalMultiple):
        known = list(mutable.values)
        values = sorted(
            value if isinstance(value, (list, tuple)) else [value], key=lambda v: known.index(v) if v in known else -1
        )
        single: Option = values[0] if mutable.n_chosen == 1 and len(values) == 1 else tuple(values)
        return single
    option: Option = tuple(value) if isinstance(value, list) else value
    return option


def _same(value: Any, option: Option) -> bool:
    return bool(value == option) or (isinstance(value, list) and tuple(value) == option)
