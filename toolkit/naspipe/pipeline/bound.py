"""A lower bound on the makespan of any plan that keeps a contract, whatever its policy and partition.

It is the larger of two values: the work divided by the stages, and the longest causal chain. The causal chain is the
time that a run would take if every block had a device of its own and only the contract held subnets back. No plan is
shorter than either, so makespan / bound is never below 1.
"""

from __future__ import annotations

from collections import deque

from naspipe.pipeline.contract import Contract
from naspipe.pipeline.subnet import LayerKey, SubnetShape


class Bound:
    """Adds subnets one by one, in order; memory grows only with the number of layers and the contract's horizon."""

    def __init__(self, contract: Contract, microbatches: int, delay: int | None) -> None:
        """Start with no subnet.

        Args:
            contract: Says which earlier updates a subnet's forward needs.
            microbatches: Micro-batches of each batch.
            delay: The delay D of always-active layers; None if there are none, or the contract has no delay.
        """
        self._contract = contract
        self._microbatches = microbatches
        self._delay = delay
        self._subnets = 0
        self._work = 0
        self._chain = 0
        self._strict, self._always_active = _Updates(), _Updates()

    def add(self, subnet: SubnetShape) -> None:
        """Add the next subnet."""
        index = self._subnets
        self._subnets += 1
        self._work += self._microbatches * (sum(subnet.forward) + sum(subnet.backward)) + sum(subnet.update)
        horizon = self._contract.horizon(index)
        self._strict.require(horizon)
        self._always_active.require(horizon if self._delay is None else index - self._delay)
        updated = self._updates(subnet, self._forwards(subnet))
        strict: dict[LayerKey, int] = {}
        always_active: dict[LayerKey, int] = {}
        for block, layers in enumerate(subnet.layers):
            for layer in layers:
                (strict if layer.strict else always_active)[block, layer.name] = updated[block]
        self._strict.add(index, strict)
        self._always_active.add(index, always_active)
        self._chain = max(self._chain, max(updated))

    def _forwards(self, subnet: SubnetShape) -> list[list[int]]:
        """Return when each forward can have ended: for every block, for every micro-batch."""
        ends: list[list[int]] = []
        before = [0] * self._microbatches
        for block, cost in enumerate(subnet.forward):
            free = 0
            for name, strict in subnet.layers[block]:
                required = self._strict.required if strict else self._always_active.required
                free = max(free, required.get((block, name), 0))
            before = _in_turn(before, free, cost)
            ends.append(before)
        return ends

    def _updates(self, subnet: SubnetShape, forwards: list[list[int]]) -> list[int]:
        """Return when each block's update can have ended."""
        updated = [0] * len(forwards)
        after = forwards[-1]
        for block in range(len(forwards) - 1, -1, -1):
            cost = subnet.backward[block]
            after = _in_turn(after, 0, cost)
            # One device runs all forwards and backwards of a block.
            start = forwards[block][0] - subnet.forward[block]
            busy = start + self._microbatches * (subnet.forward[block] + cost)
            updated[block] = max(after[-1], busy) + subnet.update[block]
        return updated

    def value(self, stages: int) -> int:
        """Return the bound in ticks for a number of stages."""
        return max(-(-self._work // stages), self._chain)

    @property
    def work(self) -> int:
        """The work of all subnets so far, in ticks."""
        return self._work


class _Updates:
    """When the updates of layers can have ended.

    Attributes:
        required: The latest update of each layer that the next subnet waits for.
    """

    def __init__(self) -> None:
        self.required: dict[LayerKey, int] = {}
        self._later: deque[tuple[int, dict[LayerKey, int]]] = deque()

    def add(self, subnet: int, ends: dict[LayerKey, int]) -> None:
        """Add the updates of a subnet."""
        self._later.append((subnet, ends))

    def require(self, horizon: int) -> None:
        """Let the next subnet wait for the updates of all subnets below the horizon."""
        while self._later and self._later[0][0] < horizon:
            for layer, end in self._later.popleft()[1].items():
                if end > self.required.get(layer, 0):
                    self.required[layer] = end


def _in_turn(arrivals: list[int], free: int, cost: int) -> list[int]:
    """Return when micro-batches end on a device that is free from a tick on and runs them in turn."""
    ends = []
    for arrived in arrivals:
        free = (arrived if arrived > free else free) + cost
        ends.append(free)
    return ends
