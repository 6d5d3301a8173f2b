"""Statistics of a plan's stages: busy time, and the peak of activations and layer versions in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from naspipe.pipeline.action import Action, Kind
from naspipe.pipeline.plan import Plan
from naspipe.pipeline.subnet import LayerKey


@dataclass(frozen=True)
class StageStatistics:
    """Statistics of one stage.

    Attributes:
        busy: Ticks in which the stage works.
        activations: Peak number of blocks whose forward has started and whose backward has not ended, counted
            once for each unit.
        versions: Peak number of layer versions besides the current ones, which later subnets are to read or
            subnets in flight have read.
        moves: How often a subnet runs a block on this stage while most subnets run it on another.
    """

    busy: int
    activations: int
    versions: int
    moves: int


def stage_statistics(plan: Plan) -> list[StageStatistics]:
    """Return the statistics of every stage."""
    versions = versions_held(plan)
    homes = _homes(plan)
    result = []
    for stage, row in enumerate(plan.actions):
        held = peak = moves = 0
        for planned in row:
            blocks = planned.end_block - planned.first_block
            if planned.action.kind is Kind.FORWARD:
                held += blocks
                peak = max(peak, held)
                if not planned.action.microbatch:
                    moves += sum(homes[block] != stage for block in range(planned.first_block, planned.end_block))
            elif planned.action.kind is Kind.BACKWARD:
                held -= blocks
        result.append(StageStatistics(plan.busy(stage), peak, versions[stage], moves))
    return result


def _homes(plan: Plan) -> list[int]:
    """Return for every block the stage that runs it for most subnets; the lowest one if several do."""
    blocks = len(plan.subnets[0].layers) if plan.subnets else 0
    counts = [[0] * plan.stages for _ in range(blocks)]
    for subnet in plan.subnets:
        for stage in range(plan.stages):
            for block in plan.parts.blocks_of_stage(stage, subnet.cuts):
                counts[block][stage] += 1
    return [row.index(max(row)) for row in counts]


class _LayerVersions:
    """The versions of one layer that subnets still need, as training keeps them."""

    def __init__(self, delay: int | None) -> None:
        self.delay = delay
        self.version = 0
        self.early: set[int] = set()
        self.unread: dict[int, int] = {}
        self.readers: dict[int, int] = {}
        self.read_by: dict[int, int] = {}

    def read(self, subnet: int) -> None:
        version = self.version if self.delay is None else max(0, subnet - self.delay)
        if self.delay is not None:
            self.unread[version] = self._left(version) - 1
        self.readers[version] = self.readers.get(version, 0) + 1
        self.read_by[subnet] = version

    def update(self, subnet: int) -> None:
        version = self.read_by.pop(subnet)
        self.readers[version] -= 1
        if not self.readers[version]:
            del self.readers[version]
        if self.delay is None:
            self.version += 1
            return
        # Updates of a layer that follows the delay are folded in the order of subnets.
        self.early.add(subnet)
        while self.version in self.early:
            self.early.remove(self.version)
            self.version += 1

    def _left(self, version: int) -> int:
        assert self.delay is not None
        return self.unread.get(version, self.delay + 1 if version == 0 else 1)

    def held(self) -> int:
        """Return the number of versions held besides the current one."""
        needed = {version for version in self.readers if version != self.version}
        if self.delay is not None:
            first = max(0, self.version - self.delay)
            needed.update(v for v in range(first, self.version) if self._left(v) > 0)
            self.unread = {v: left for v, left in self.unread.items() if v >= first}
        return len(needed)


def versions_held(plan: Plan, sizes: Mapping[LayerKey, int] | None = None) -> list[int]:
    """Return for every stage the peak of the layer versions held besides the current ones.

    Args:
        plan: The plan.
        sizes: Size of a version of each layer, by block and name, in any unit; by default 1.
    """
    layers: dict[LayerKey, _LayerVersions] = {}
    held = [0] * plan.stages
    peaks = [0] * plan.stages
    read: set[Action] = set()
    for planned in plan.in_time():
        action = planned.action
        first = action._replace(kind=Kind.FORWARD, microbatch=0)
        reads = action.kind is Kind.FORWARD and first not in read
        if not reads and action.kind is not Kind.UPDATE:
            continue
        read.add(first)
        for key, delayed in plan.layers_on(action.subnet, plan.parts.of(action)):
            if key not in layers:
                layers[key] = _LayerVersions(plan.delay if delayed else None)
            before = layers[key].held()
            layers[key].read(action.subnet) if reads else layers[key].update(action.subnet)
            held[action.stage] += (layers[key].held() - before) * (1 if sizes is None else sizes[key])
        peaks[action.stage] = max(peaks[action.stage], held[action.stage])
    return peaks
