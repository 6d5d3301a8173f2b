"""A lower bound on the makespan of any plan that keeps a contract, whatever its policy and partition.

The larger of the work divided by the stages and the longest causal chain: the time a run would take if every
block had a device of its own and only the contract held subnets back. Both hold for every plan, so
makespan / bound is never below 1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from naspipe.pipeline.contract import Contract
from naspipe.pipeline.subnet import SubnetShape


class Bound:
    """Adds subnets up one by one, in order; memory is the layers."""

    def __init__(self, contract: Contract, microbatches: int, delay: int | None) -> None:
        """Start with no subnet.

        Args:
            contract: Says which earlier updates a subnet's forward needs.
            microbatches: Micro-batches of each batch.
            delay: The delay D of always-active layers; None if there are none.
        """
        self._contract = contract
        self._microbatches = microbatches
        self._delay = delay
        self._subnets = 0
        self._work = 0
        self._chain = 0
        # When the latest update of each layer can have ended: of all subnets below the horizon, and of
        # those from the horizon on, which are moved over as it advances.
        self._settled: dict[tuple[int, str], int] = {}
        self._recent: deque[tuple[int, dict[tuple[int, str], int]]] = deque()
        self._settled_always: dict[tuple[int, str], int] = {}
        self._recent_always: deque[tuple[int, dict[tuple[int, str], int]]] = deque()

    def add(self, subnet: SubnetShape) -> None:
        """Add the next subnet."""
        index = self._subnets
        self._subnets += 1
        self._work += self._microbatches * (sum(subnet.forward) + sum(subnet.backward)) + sum(subnet.update)
        horizon = self._contract.horizon(index)
        _settle(self._recent, self._settled, horizon)
        due = horizon if self._delay is None or not self._contract.allows_delay else index - self._delay
        _settle(self._recent_always, self._settled_always, due)
        starts = self._starts(subnet)
        updated = self._updates(subnet, starts)
        ends: dict[tuple[int, str], int] = {}
        always: dict[tuple[int, str], int] = {}
        for block, layers in enumerate(subnet.layers):
            for name, strict in layers:
                (ends if strict else always)[block, name] = updated[block]
        self._recent.append((index, ends))
        self._recent_always.append((index, always))
        self._chain = max(self._chain, max(updated))

    def _starts(self, subnet: SubnetShape) -> list[list[int]]:
        """Return when each forward can have ended: for every block, for every micro-batch."""
        ends: list[list[int]] = []
        before = [0] * self._microbatches
        for block, cost in enumerate(subnet.forward):
            free = 0
            for name, strict in subnet.layers[block]:
                settled = self._settled if strict else self._settled_always
                free = max(free, settled.get((block, name), 0))
            row = []
            for arrived in before:
                free = (arrived if arrived > free else free) + cost
                row.append(free)
            ends.append(row)
            before = row
        return ends

    def _updates(self, subnet: SubnetShape, forwards: list[list[int]]) -> list[int]:
        """Return when each block's update can have ended."""
        updated = [0] * len(forwards)
        after = forwards[-1]
        parts = self._microbatches
        for block in range(len(forwards) - 1, -1, -1):
            cost = subnet.backward[block]
            free = 0
            row = []
            for arrived in after:
                free = (arrived if arrived > free else free) + cost
                row.append(free)
            # One device runs all forwards and backwards of a block.
            start = forwards[block][0] - subnet.forward[block]
            busy = start + parts * (subnet.forward[block] + cost)
            updated[block] = max(row[-1], busy) + subnet.update[block]
            after = row
        return updated

    def value(self, stages: int) -> int:
        """Return the bound in ticks for a number of stages."""
        return max(-(-self._work // stages), self._chain)

    @property
    def chain(self) -> int:
        """The longest causal chain so far, in ticks."""
        return self._chain

    @property
    def work(self) -> int:
        """The work of all subnets so far, in ticks."""
        return self._work


def _settle(
    recent: deque[tuple[int, dict[tuple[int, str], int]]], settled: dict[tuple[int, str], int], horizon: int
) -> None:
    """Move the updates of subnets below the horizon from ``recent`` to ``settled``."""
    while recent and recent[0][0] < horizon:
        for layer, end in recent.popleft()[1].items():
            if end > settled.get(layer, 0):
                settled[layer] = end


def bound_of(
    subnets: Iterable[SubnetShape], contract: Contract, stages: int, microbatches: int, delay: int | None
) -> int:
    """Return the bound in ticks for some subnets."""
    bound = Bound(contract, microbatches, delay)
    for subnet in subnets:
        bound.add(subnet)
    return bound.value(stages)
