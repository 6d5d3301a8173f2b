"""Forwards that wait for the updates of all subnets up to some number.

Under *causal*, a forward of subnet y on a block with an always-active layer waits until all subnets up to
y - 1 - D have been updated on this block. Under *flush* and *stale*, every part waits for all subnets below the
horizon. Conflicts on strict layers are not found here but by the planner.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from naspipe.pipeline.active_subnet import ActiveSubnet
from naspipe.pipeline.contract import Contract
from naspipe.pipeline.partition import Cuts


class UpdateOrder:
    """Counts at each place, a block or a part, how many subnets have been updated there without a gap."""

    def __init__(self, contract: Contract, delay: int | None, always_active: Iterable[int], first: int = 0) -> None:
        """Start with the updates of all subnets below ``first``.

        Args:
            contract: Gives the horizon.
            delay: The delay D of always-active layers; None if there are none.
            always_active: The blocks that have an always-active layer.
            first: The first subnet to be registered.
        """
        self._first = first
        self._contract = contract
        self._delay = delay
        self._always_active = sorted(always_active)
        self._places: tuple[Cuts, list[list[int]]] = ((), [])
        self._reached: dict[int, int] = {}
        self._early: dict[int, set[int]] = {}
        self._waiting: dict[int, dict[int, list[tuple[ActiveSubnet, int]]]] = {}

    def register(self, active: ActiveSubnet) -> None:
        """Let the parts of an admitted subnet wait for the updates that must come before their forwards."""
        if not self._contract.orders_layers:
            due = self._contract.horizon(active.index)
        elif self._delay is not None:
            due = active.index - self._delay
        else:
            return
        if due <= self._first:
            return
        for part, places in enumerate(self._places_of(active.cuts)):
            for place in places:
                if self._reached.get(place, self._first) < due:
                    active.waits[part] += 1
                    self._waiting.setdefault(place, {}).setdefault(due, []).append((active, part))

    def end_update(self, active: ActiveSubnet, part: int) -> list[tuple[ActiveSubnet, int]]:
        """Note the end of a part's update; return the parts whose wait is over, once for each wait."""
        released: list[tuple[ActiveSubnet, int]] = []
        for place in self._places_of(active.cuts)[part]:
            reached = self._reached.get(place, self._first)
            early = self._early.setdefault(place, set())
            early.add(active.index)
            waiting = self._waiting.get(place, {})
            while reached in early:
                early.remove(reached)
                reached += 1
                released += waiting.pop(reached, ())
            self._reached[place] = reached
        return released

    def _places_of(self, cuts: Cuts) -> list[list[int]]:
        """Return for every part its places: the blocks with an always-active layer, or the part itself."""
        if self._places[0] is not cuts:
            if self._contract.orders_layers:
                places = [
                    [block for block in self._always_active if start <= block < end]
                    for start, end in itertools.pairwise(cuts)
                ]
            else:
                places = [[part] for part in range(len(cuts) - 1)]
            self._places = (cuts, places)
        return self._places[1]
