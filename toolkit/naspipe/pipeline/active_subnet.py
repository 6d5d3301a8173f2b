"""A subnet in flight: the progress of its parts, the updates they wait for, and its causal chain."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from naspipe.pipeline.partition import Cuts
from naspipe.pipeline.subnet import SubnetShape


class SummedCosts(NamedTuple):
    """A subnet's costs in ticks, summed up once.

    Attributes:
        forward: Per part.
        backward: Per part.
        update: Per part.
        forward_from: Per block the forward of it and all later blocks; one entry more, which is 0.
        backward_below: Per block the backward of all blocks below; one entry more, the whole backward.
        part_of: Per block its part.
        work: Forward and backward of all blocks.
    """

    forward: list[int]
    backward: list[int]
    update: list[int]
    forward_from: list[int]
    backward_below: list[int]
    part_of: list[int]
    work: int


def sum_costs(shape: SubnetShape, cuts: Cuts) -> SummedCosts:
    """Sum up a subnet's costs for a partition into parts."""
    ranges = list(itertools.pairwise(cuts))
    forward_below = [0, *itertools.accumulate(shape.forward)]
    backward_below = [0, *itertools.accumulate(shape.backward)]
    update_below = [0, *itertools.accumulate(shape.update)]
    return SummedCosts(
        [forward_below[end] - forward_below[start] for start, end in ranges],
        [backward_below[end] - backward_below[start] for start, end in ranges],
        [update_below[end] - update_below[start] for start, end in ranges],
        [forward_below[-1] - below for below in forward_below],
        backward_below,
        [part for part, (start, end) in enumerate(ranges) for _ in range(start, end)],
        forward_below[-1] + backward_below[-1],
    )


class ActiveSubnet:
    """A subnet between its admission and its last update.

    Attributes:
        index: Its place in the sequence.
        cuts: Its partition into parts.
        costs: Its summed costs.
        arrived_forward: Per part the micro-batches whose input has arrived.
        started_forward: Per part the forwards started.
        ended_forward: Per part the forwards ended.
        arrived_backward: Per part the micro-batches whose gradient has arrived.
        started_backward: Per part the backwards started.
        ended_backward: Per part the backwards ended.
        updated: Per part whether its update has ended.
        unfinished: Number of parts whose update has not ended.
        waits: Per part the number of updates its first forward waits for.
        releases: Per part the parts of later subnets that wait for its update.
        tail: Longest causal chain, in ticks, from the end of its forward.
    """

    __slots__ = (
        "_predecessors", "_successors", "arrived_backward", "arrived_forward", "costs", "cuts",
        "ended_backward", "ended_forward", "index", "releases", "started_backward", "started_forward", "tail",
        "unfinished", "updated", "waits",
    )  # fmt: skip

    def __init__(self, index: int, cuts: Cuts, costs: SummedCosts, microbatches: int) -> None:
        parts = len(cuts) - 1
        self.index = index
        self.cuts = cuts
        self.costs = costs
        self.arrived_forward = [0] * parts
        self.arrived_forward[0] = microbatches
        self.started_forward = [0] * parts
        self.ended_forward = [0] * parts
        self.arrived_backward = [0] * parts
        self.started_backward = [0] * parts
        self.ended_backward = [0] * parts
        self.updated = [False] * parts
        self.unfinished = parts
        self.waits = [0] * parts
        self.releases: list[list[tuple[ActiveSubnet, int]]] = [[] for _ in range(parts)]
        self.tail = costs.backward_below[-1]
        # Later subnets that wait for this one, and earlier ones that it waits for, each with the first shared block.
        self._successors: dict[ActiveSubnet, int] = {}
        self._predecessors: dict[ActiveSubnet, int] = {}

    def follow(self, other: ActiveSubnet, block: int) -> None:
        """Note that this subnet reads a layer of ``block`` after ``other`` has updated it.

        Call it in the order of blocks: only the first one counts.
        """
        if other not in self._predecessors:
            self._predecessors[other] = block
            other._successors[self] = block

    def lengthen_chains(self) -> None:
        """Lengthen the chains of all subnets that this one follows, so that they include it."""
        stack = [self]
        while stack:
            later = stack.pop()
            costs = later.costs
            for other, block in later._predecessors.items():
                below = other.costs.backward_below
                chain = below[-1] - below[block] + costs.forward_from[block] + later.tail
                if chain > other.tail:
                    other.tail = chain
                    stack.append(other)

    def leave(self) -> None:
        """Forget all other subnets, so that a finished subnet keeps none of them in memory."""
        for other in self._successors:
            del other._predecessors[self]
        for other in self._predecessors:
            del other._successors[self]
        self._successors.clear()
        self._predecessors.clear()

    def forward_chain(self, part: int) -> tuple[int, int]:
        """Return the longest causal chain from the start of a part's forward, and the share after the forward.

        The share counts only if another subnet is in the chain; otherwise it is 0.
        """
        own = self.costs.backward_below[-1]
        return self.costs.forward_from[self.cuts[part]] + self.tail, self.tail if self.tail > own else 0

    def backward_chain(self, part: int) -> tuple[int, int]:
        """Return the longest causal chain from the start of a part's backward, and the share after the backward."""
        end = self.cuts[part + 1]
        below = self.costs.backward_below
        longest = own = below[end]
        for later, block in self._successors.items():
            if block < end:
                chain = own - below[block] + later.costs.forward_from[block] + later.tail
                if chain > longest:
                    longest = chain
        return longest, longest - own
