"""The contract checked: the version of each layer that each subnet reads, and the order of updates.

The version of a layer is the number of updates it has seen. Its *users* are the subnets that use it. The version
that is due at a read is the number of users before the reader that the contract requires. Updates must come in the
order of the users, so equal numbers mean equal sets of updates.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator

from naspipe.pipeline.action import Action, Kind
from naspipe.pipeline.plan import Plan
from naspipe.pipeline.plan_index import PlanIndex, Violation
from naspipe.pipeline.subnet import LayerKey


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
        part = index.parts.of(action)
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
            part = index.parts.of(action)
            if action.kind is Kind.UPDATE:
                yield from judge.recorded_update(action, part, place, seen)
            elif action.kind is Kind.FORWARD and (action.subnet, part) not in read:
                read[action.subnet, part] = seen
                yield from judge.recorded_read(action, part, place, seen)
            elif read.get((action.subnet, part)) != seen:
                text = f"{action} must see the versions that the subnet's first forward read, but saw {seen}."
                yield Violation("read", text, stage, place, action.subnet)


def run_order(index: PlanIndex) -> Iterator[tuple[int, int] | Violation]:
    """Yield stage and place of each action as the stages run them: each in its order, waiting for results.

    Actions that could run at the same time come by their planned start. A deadlock is yielded as a violation at the
    end.
    """
    rows = index.plan.actions
    places = [0] * len(rows)
    waiting: dict[Action, list[int]] = defaultdict(list)
    done: set[Action] = set()
    heap: list[tuple[int, bool, int]] = []

    def advance(stage: int) -> None:
        """Put the next action of a stage on the heap, or let the stage wait for the result it needs."""
        row = rows[stage]
        while places[stage] < len(row) and index.places.get(row[places[stage]].action) != (
            stage,
            places[stage],
        ):
            places[stage] += 1  # Actions that do not belong to the plan have been reported.
        if places[stage] == len(row):
            return
        planned = row[places[stage]]
        source = index.parts.source_action(planned.action)
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
            text = f"{action} waits for {source}, which waits in turn: no stage can continue."
            yield Violation("deadlock", text, stage, places[stage])


class _Judge:
    """Counts the updates of each layer and compares its version with the one that is due."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._contract = plan.contract
        self._users: dict[LayerKey, list[int]] = defaultdict(list)
        self._version: dict[LayerKey, int] = defaultdict(int)
        self._early: dict[LayerKey, set[int]] = defaultdict(set)
        for number, subnet in enumerate(plan.subnets):
            for block, layers in enumerate(subnet.layers):
                for name, _ in layers:
                    self._users[block, name].append(number)

    def read(self, action: Action, part: int, place: int) -> Iterator[Violation]:
        """Judge a subnet's read of all its layers on a part."""
        for key, delayed in self._plan.layers_on(action.subnet, part):
            version = self._version[key]
            lowest, highest = self._due(key, action.subnet, delayed)
            if version < lowest:
                what, due = "has not come yet", lowest
            elif version > highest and not delayed:  # With a delay, older versions are kept for subnets that need them.
                what, due = "has come already", highest
            else:
                continue
            reason = f" under {self._contract}: the update of subnet {{other}} {what}."
            yield self._violation("read", f"{action} reads", reason, action, place, key, version, due)

    def update(self, action: Action, part: int, place: int) -> Iterator[Violation]:
        """Judge a subnet's update of all its layers on a part."""
        for key, delayed in self._plan.layers_on(action.subnet, part):
            if delayed:
                self._fold(key, action.subnet)
                continue
            version, due = self._version[key], bisect_left(self._users[key], action.subnet)
            self._version[key] += 1
            if version != due:
                reason = ": updates follow the order of subnets, and subnet {other} is out of turn."
                yield self._violation("update", f"{action} updates", reason, action, place, key, version, due)

    def recorded_read(self, action: Action, part: int, place: int, seen: dict[LayerKey, int]) -> Iterator[Violation]:
        """Judge the versions that a subnet is recorded to have read on a part."""
        for key, delayed in self._plan.layers_on(action.subnet, part):
            lowest, highest = self._due(key, action.subnet, delayed)
            version = seen.get(key, -1)
            if not lowest <= version <= highest:
                due = lowest if version < lowest else highest
                yield self._recorded("read", action, place, key, version, due)

    def recorded_update(self, action: Action, part: int, place: int, seen: dict[LayerKey, int]) -> Iterator[Violation]:
        """Judge the versions that a subnet's update is recorded to have changed on a part."""
        for key, delayed in self._plan.layers_on(action.subnet, part):
            # An early update waits. The version then is that of the first subnet whose update is missing.
            due = self._version[key] if delayed else bisect_left(self._users[key], action.subnet)
            version = seen.get(key, -1)
            if version != due:
                yield self._recorded("update", action, place, key, version, due)
            if delayed:
                self._fold(key, action.subnet)

    def _due(self, key: LayerKey, subnet: int, delayed: bool) -> tuple[int, int]:
        """Return the lowest and the highest version that a subnet may read of a layer."""
        users, contract = self._users[key], self._contract
        if delayed:
            assert self._plan.delay is not None
            due = bisect_left(users, subnet - self._plan.delay)
            return due, due
        return bisect_left(users, contract.horizon(subnet)), bisect_left(users, contract.read_limit(subnet))

    def _fold(self, key: LayerKey, subnet: int) -> None:
        """Queue the update of a layer that follows the delay, and fold the updates whose turn it is."""
        users, early = self._users[key], self._early[key]
        early.add(subnet)
        while self._version[key] < len(users) and users[self._version[key]] in early:
            early.remove(users[self._version[key]])
            self._version[key] += 1

    def _recorded(self, rule: str, action: Action, place: int, key: LayerKey, version: int, due: int) -> Violation:
        reason = f" under {self._contract}: subnet {{other}} is out of turn."
        return self._violation(rule, f"{action} is recorded to have seen", reason, action, place, key, version, due)

    def _violation(
        self, rule: str, what: str, reason: str, action: Action, place: int, key: LayerKey, version: int, due: int
    ) -> Violation:
        """Return a wrong version; the reason names the ``other`` subnet, whose update is missing or too early."""
        block, name = key
        users = self._users[key]
        other = users[max(version, 0)] if version < due else users[min(version, len(users)) - 1]
        message = f"{what} layer {name!r} of block {block} at version {version}, but version {due} is due"
        return Violation(
            rule, message + reason.format(other=other), action.stage, place, action.subnet, other, block, name,
            version, due,
        )  # fmt: skip
