"""Causal waits: forwards whose input had arrived before an update that the contract requires."""

from __future__ import annotations

from typing import NamedTuple

from naspipe.pipeline.action import Kind, PlannedAction
from naspipe.pipeline.plan import Plan
from naspipe.pipeline.subnet import LayerKey

_Place = tuple[int, int]


class CausalWait(NamedTuple):
    """A forward that waited for the update of an earlier subnet.

    Attributes:
        update: Of the updates that the contract requires before the forward, the one that ends last.
        forward: The first forward of a subnet on a part.
    """

    update: PlannedAction
    forward: PlannedAction


def causal_waits(plan: Plan) -> list[CausalWait]:
    """Return the forwards that had to wait for an update, in the order in which they start.

    The first forward of subnet y on a part waits if a required update ended after the forward's input arrived. The
    input arrives at the end of the forward on the part before; on the first part, at tick 0. Required is, for each
    layer of the part, the update of the layer's last user below the contract's horizon. For an always-active layer
    with delay D, the updates of all subnets up to y - 1 - D are required. If several updates end last, the one of the
    latest subnet counts, on the first of its parts.

    Args:
        plan: Any plan, or trace. It need not be valid: where an action is missing, there is no wait.
    """
    parts = plan.parts
    forwards: dict[_Place, PlannedAction] = {}
    updates: dict[_Place, PlannedAction] = {}
    for planned in plan.in_time():
        action = planned.action
        place = action.subnet, parts.of(action)
        if action.kind is Kind.UPDATE:
            updates.setdefault(place, planned)
        elif action.kind is Kind.FORWARD and not action.microbatch:
            forwards.setdefault(place, planned)
    index = _RequiredUpdates(plan, updates)
    waits = []
    for subnet in range(len(plan.subnets)):
        index.advance(subnet)
        for part in range(parts.count):
            forward = forwards.get((subnet, part))
            before = forwards.get((subnet, part - 1))
            update = index.latest(subnet, part)
            if forward is None or update is None or (part and before is None):
                continue
            if update.end > (before.end if before else 0):
                waits.append(CausalWait(update, forward))
    return sorted(waits, key=lambda wait: (wait.forward.start, wait.forward.action))


class _RequiredUpdates:
    """The update of each layer that a subnet must wait for, for one subnet after another."""

    def __init__(self, plan: Plan, updates: dict[_Place, PlannedAction]) -> None:
        self._plan = plan
        self._updates = updates
        # Without a delay, the last required update of each layer; with a delay, the one that ends last.
        self._last: dict[LayerKey, PlannedAction | None] = {}
        self._latest: dict[LayerKey, PlannedAction | None] = {}
        # The updates of all subnets below are required.
        self._required = self._required_delayed = 0

    def advance(self, subnet: int) -> None:
        """Add the updates that must come before a subnet's reads."""
        horizon, delay = self._plan.contract.horizon(subnet), self._plan.delay
        while self._required < horizon:
            for layer, delayed, update in self._updates_of(self._required):
                if not delayed:
                    self._last[layer] = update
            self._required += 1
        while delay is not None and self._required_delayed < subnet - delay:
            for layer, delayed, update in self._updates_of(self._required_delayed):
                if delayed:
                    # Gradients are folded in order, so an earlier subnet may be the one that is late.
                    self._latest[layer] = _later(self._latest.get(layer), update)
            self._required_delayed += 1

    def latest(self, subnet: int, part: int) -> PlannedAction | None:
        """Return the last update to end that a subnet needs on a part, or None."""
        latest = None
        for layer, delayed in self._plan.layers_on(subnet, part):
            latest = _later(latest, (self._latest if delayed else self._last).get(layer))
        return latest

    def _updates_of(self, subnet: int) -> list[tuple[LayerKey, bool, PlannedAction | None]]:
        """Return for every layer of a subnet whether it follows the delay, and its update."""
        return [
            (layer, delayed, self._updates.get((subnet, part)))
            for part in range(self._plan.parts.count)
            for layer, delayed in self._plan.layers_on(subnet, part)
        ]


def _later(one: PlannedAction | None, other: PlannedAction | None) -> PlannedAction | None:
    """Return the update that ends later; if both end at once, the later subnet's, or the one on the earlier part."""
    if one is None or other is None:
        return one or other
    return max(one, other, key=lambda u: (u.end, u.action.subnet, -u.action.stage, -u.action.segment))
