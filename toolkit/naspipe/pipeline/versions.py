"""Contracts judged: the version of each layer that each subnet reads, and the order of its updates.

A layer's version is the number of updates it has seen. Its *users* are the subnets that use it; the version
that is due at a read follows from how many of them come before the reader. Since updates must come in the
order of the users, equal numbers mean equal sets of updates.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator

from naspipe.pipeline.action import Action, Kind
from naspipe.pipeline.contract import Contract
from naspipe.pipeline.plan import Plan
from naspipe.pipeline.plan_index import PlanIndex, Violation

LayerKey = tuple[int, str]


def find_version_violations(index: PlanIndex) -> Iterator[Violation]:
    """Yield every read and every update at a version that the contract forbids."""
    judge = _Judge(index.plan)
    read: set[tuple[int, int]] = set()
    for entry in run_order(index):
        if isinstance(entry, Violation):
            yield entry
            continue
        stage, place = entry
        action = index.plan.actions[stage][place].action
        part = index.part(action)
        if action.kind is Kind.FORWARD and (action.subnet, part) not in read:
            # A subnet reads once, for all its micro-batches.
            read.add((action.subnet, part))
            yield from judge.read(action, part, place)
        elif action.kind is Kind.UPDATE:
            yield from judge.update(action, part, place)


def find_recorded_violations(index: PlanIndex) -> Iterator[Violation]:
    """Yield every version that a trace has recorded and the contract forbids."""
    if index.plan.versions is None:
        return
    judge = _Judge(index.plan)
    read: dict[tuple[int, int], dict[LayerKey, int]] = {}
    for stage, row in enumerate(index.plan.actions):
        for place, planned in enumerate(row):
            action = planned.action
            if index.places.get(action) != (stage, place):
                continue
            seen = {(block, name): version for block, name, version in index.plan.versions[stage][place]}
            part = index.part(action)
            if action.kind is Kind.UPDATE:
                yield from judge.recorded_update(action, part, place, seen)
            elif action.kind is Kind.FORWARD and (action.subnet, part) not in read:
                read[action.subnet, part] = seen
                yield from judge.recorded_read(action, part, place, seen)
            elif read.get((action.subnet, part)) != seen:
                text = f"{action} must see the versions that the subnet's first forward read, but saw {seen}."
                yield Violation("read", text, stage, place, action.subnet)


def run_order(index: PlanIndex) -> Iterator[tuple[int, int] | Violation]:
    """Yield stage and place of each action as stages run them: each in its order, waiting for results.

    What could run at once comes by its planned start. A deadlock is yielded as a violation, and ends it.
    """
    rows = index.plan.actions
    places = [0] * len(rows)
    waiting: dict[Action, list[int]] = defaultdict(list)
    done: set[Action] = set()
    heap: list[tuple[int, bool, int]] = []

    def advance(stage: int) -> None:
        """Put a stage's next action on the heap, or let it wait for the result it needs."""
        row = rows[stage]
        while places[stage] < len(row) and index.places.get(row[places[stage]].action) != (
            stage,
            places[stage],
        ):
            places[stage] += 1  # What does not belong to the plan has been reported.
        if places[stage] == len(row):
            return
        planned = row[places[stage]]
        source = index.source(planned.action)
        if source is not None and source.stage != stage and source in index.places and source not in done:
            waiting[source].append(stage)
        else:
            free_update = planned.action.kind is Kind.UPDATE and planned.start == planned.end
            heapq.heappush(heap, (planned.start, not free_update, stage))

    for stage in range(len(rows)):
        advance(stage)
    while heap:
        _, _, stage = heapq.heappop(heap)
        place = places[stage]
        yield stage, place
        action = rows[stage][place].action
        done.add(action)
        places[stage] += 1
        advance(stage)
        for other in waiting.pop(action, ()):
            advance(other)
    for source, stages in waiting.items():
        for stage in stages:
            action = rows[stage][places[stage]].action
            text = f"{action} waits for {source}, which waits in turn: nothing can go on."
            yield Violation("deadlock", text, stage, places[stage])


class _Judge:
    """Counts updates and compares with what is due."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._contract: Contract = plan.contract
        self._users: dict[LayerKey, list[int]] = defaultdict(list)
        self._version: dict[LayerKey, int] = defaultdict(int)
        self._early: dict[LayerKey, set[int]] = defaultdict(set)
        for number, subnet in enumerate(plan.subnets):
            for block, layers in enumerate(subnet.layers):
                for name, _ in layers:
                    self._users[block, name].append(number)

    def _layers(self, subnet: int, part: int) -> Iterator[tuple[LayerKey, bool]]:
        """Yield the layers of a subnet on a part, and whether they follow the delay."""
        planned = self._plan.subnets[subnet]
        for block in range(planned.cuts[part], planned.cuts[part + 1]):
            for name, strict in planned.layers[block]:
                yield (block, name), not strict and self._plan.delay is not None

    def _due(self, key: LayerKey, subnet: int) -> tuple[int, int]:
        """Return the lowest and the highest version that a subnet may read of a layer without a delay."""
        users = self._users[key]
        contract = self._contract
        return bisect_left(users, contract.horizon(subnet)), bisect_left(users, contract.read_limit(subnet))

    def read(self, action: Action, part: int, place: int) -> Iterator[Violation]:
        """Judge a subnet's read of all its layers on a part."""
        subnet = action.subnet
        for key, delayed in self._layers(subnet, part):
            users, version = self._users[key], self._version[key]
            if delayed:
                assert self._plan.delay is not None
                lowest = bisect_left(users, subnet - self._plan.delay)
                # Older versions are kept for those who are due them.
                highest = len(users)
            else:
                lowest, highest = self._due(key, subnet)
            if version < lowest:
                other, what, due = users[version], "has not come yet", lowest
            elif version > highest:
                other, what, due = users[version - 1], "has come already", highest
            else:
                continue
            block, name = key
            yield Violation(
                "read",
                f"{action} reads layer {name!r} of block {block} at version {version}, but version {due} is "
                f"due under {self._contract}: the update of subnet {other} {what}.",
                action.stage, place, subnet, other, block, name, version, due,
            )  # fmt: skip

    def recorded_read(self, action: Action, part: int, place: int, seen: dict[LayerKey, int]) -> Iterator[Violation]:
        """Judge the versions that a subnet is recorded to have read on a part."""
        subnet = action.subnet
        for key, delayed in self._layers(subnet, part):
            if delayed:
                assert self._plan.delay is not None
                lowest = highest = max(0, subnet - self._plan.delay)
            else:
                lowest, highest = self._due(key, subnet)
            version = seen.get(key, -1)
            if not lowest <= version <= highest:
                yield self._recorded(action, place, key, version, lowest if version < lowest else highest, "read")

    def recorded_update(self, action: Action, part: int, place: int, seen: dict[LayerKey, int]) -> Iterator[Violation]:
        """Judge the versions that a subnet's update is recorded to have changed on a part."""
        for key, delayed in self._layers(action.subnet, part):
            # What comes early waits: then the version is that of the first who has not come.
            due = self._version[key] if delayed else bisect_left(self._users[key], action.subnet)
            version = seen.get(key, -1)
            if version != due:
                yield self._recorded(action, place, key, version, due, "update")
            if delayed:
                self._fold(key, action.subnet)

    def _recorded(self, action: Action, place: int, key: LayerKey, version: int, due: int, rule: str) -> Violation:
        block, name = key
        users = self._users[key]
        other = users[max(version, 0)] if version < due else users[min(version, len(users)) - 1]
        return Violation(
            rule,
            f"{action} is recorded to have seen layer {name!r} of block {block} at version {version}, but version "
            f"{due} is due under {self._contract}: subnet {other} is out of turn.",
            action.stage, place, action.subnet, other, block, name, version, due,
        )  # fmt: skip

    def _fold(self, key: LayerKey, subnet: int) -> None:
        """Queue the update of a layer that follows the delay, and fold what is in turn."""
        users, early = self._users[key], self._early[key]
        early.add(subnet)
        while self._version[key] < len(users) and users[self._version[key]] in early:
            early.remove(users[self._version[key]])
            self._version[key] += 1

    def update(self, action: Action, part: int, place: int) -> Iterator[Violation]:
        """Judge a subnet's update of all its layers on a part."""
        subnet = action.subnet
        for key, delayed in self._layers(subnet, part):
            users = self._users[key]
            if delayed:
                self._fold(key, subnet)
                continue
            version, due = self._version[key], bisect_left(users, subnet)
            self._version[key] += 1
            if version != due:
                other = users[version] if version < due else users[min(version, len(users)) - 1]
                block, name = key
                yield Violation(
                    "update",
                    f"{action} updates layer {name!r} of block {block} at version {version}, but version "
                    f"{due} is due: updates follow the order of subnets, and subnet {other} is out of turn.",
                    action.stage, place, subnet, other, block, name, version, due,
                )  # fmt: skip
