"""The validator against a brute-force interpreter, on plans and on random mutations of them."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.executors import Executor
from naspipe.executors.csp import CSP
from naspipe.executors.gpipe import GPipe
from naspipe.executors.pipedream import PipeDream
from naspipe.executors.sequential import Sequential
from naspipe.pipeline.abstract import AbstractSpace
from naspipe.pipeline.action import Action, Kind, PlannedAction
from naspipe.pipeline.contract import CAUSAL
from naspipe.pipeline.plan import Plan
from naspipe.pipeline.scenario import Layout, Scenario
from naspipe.pipeline.validator import explain, find_violations
from naspipe_strategies.uniform import UniformSampler

# What the interpreter does not look at: times, and the numbers of messages.
JUDGED = {"action", "order", "read", "update", "deadlock"}


def make(
    executor: Executor,
    stages: int,
    segments: int,
    microbatches: int,
    delay: int | None,
    seed: int,
    options: int,
) -> Plan:
    space = AbstractSpace(stages * segments + 1, options)
    always = (0, len(space.decisions) - 1) if delay is not None or seed % 2 else ()
    scenario = Scenario(lambda: space.subnets(UniformSampler, seed, bool(always)), 7, microbatches, delay, always)
    return scenario.plan(executor, Layout(stages, segments), "x")


class Interpreter:
    """Runs a plan action by action and records the set of updates that each read sees."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.updates: dict[tuple[int, str], list[int]] = defaultdict(list)
        self.reads: dict[tuple[int, int, str], set[int]] = {}

    def keeps_its_contract(self) -> bool:
        return self._has_every_action_once() and self._runs_to_the_end() and self._is_right()

    def _parts(self) -> range:
        return range(self.plan.stages * self.plan.segments)

    def _has_every_action_once(self) -> bool:
        plan = self.plan
        expected: Counter[tuple[int, Action, int, int]] = Counter()
        for y, subnet in enumerate(plan.subnets):
            for part in self._parts():
                stage, segment = divmod(part, plan.segments)
                blocks = (subnet.cuts[part], subnet.cuts[part + 1])
                for m in range(plan.microbatches):
                    expected[stage, Action(stage, Kind.FORWARD, y, m, segment), *blocks] += 1
                    expected[stage, Action(stage, Kind.BACKWARD, y, m, segment), *blocks] += 1
                expected[stage, Action(stage, Kind.UPDATE, y, 0, segment), *blocks] += 1
        found = Counter(
            (stage, p.action, p.first_block, p.end_block) for stage, row in enumerate(plan.actions) for p in row
        )
        return found == expected

    def _runs_to_the_end(self) -> bool:
        """Let every stage run its list in order, as long as any can continue."""
        left = [list(row) for row in self.plan.actions]
        done: set[tuple[int, Kind, int, int]] = set()
        moved = True
        while moved:
            moved = False
            for row in left:
                while row and self._can_run(row[0].action, done):
                    self._run(row.pop(0), done)
                    moved = True
        return not any(left)

    def _can_run(self, action: Action, done: set[tuple[int, Kind, int, int]]) -> bool:
        part = action.stage * self.plan.segments + action.segment
        y, m = action.subnet, action.microbatch
        if action.kind is Kind.FORWARD:
            return part == 0 or (part - 1, Kind.FORWARD, y, m) in done
        if action.kind is Kind.BACKWARD:
            last = part + 1 == len(self._parts())
            return (
                (part, Kind.FORWARD, y, m) in done
                and (last or (part + 1, Kind.BACKWARD, y, m) in done)
                and (m == 0 or (part, Kind.BACKWARD, y, m - 1) in done)
            )
        return all((part, Kind.BACKWARD, y, m) in done for m in range(self.plan.microbatches))

    def _run(self, planned: PlannedAction, done: set[tuple[int, Kind, int, int]]) -> None:
        action = planned.action
        part = action.stage * self.plan.segments + action.segment
        done.add((part, action.kind, action.subnet, action.microbatch))
        for block in range(planned.first_block, planned.end_block):
            for name, _ in self.plan.subnets[action.subnet].layers[block]:
                if action.kind is Kind.FORWARD:
                    self.reads.setdefault((action.subnet, block, name), set(self.updates[block, name]))
                elif action.kind is Kind.UPDATE:
                    self.updates[block, name].append(action.subnet)

    def _is_right(self) -> bool:
        plan = self.plan
        for y, subnet in enumerate(plan.subnets):
            for block, layers in enumerate(subnet.layers):
                for name, strict in layers:
                    users = {
                        x
                        for x, other in enumerate(plan.subnets)
                        if any(layer.name == name for layer in other.layers[block])
                    }
                    seen = self.reads[y, block, name]
                    if not strict and plan.delay is not None:
                        if not {x for x in users if x < y - plan.delay} <= seen:
                            return False
                        continue
                    if self.updates[block, name] != sorted(users):
                        return False
                    before = {x for x in users if x < y}
                    kind, bound = plan.contract.kind, plan.contract.bound
                    if kind == "causal" and seen != before:
                        return False
                    if kind == "flush" and seen != {x for x in users if x < y // bound * bound}:
                        return False
                    if kind == "stale" and not {x for x in before if x < y - bound} <= seen <= before:
                        return False
        return True


def mutate(plan: Plan, choose: random.Random) -> Plan:
    """Swap, drop, duplicate or move one action."""
    rows = [list(row) for row in plan.actions]
    stage = choose.randrange(len(rows))
    row = rows[stage]
    place = choose.randrange(len(row))
    kind = choose.choice(["swap", "neighbours", "drop", "duplicate", "move", "other stage"])
    if kind == "swap":
        other = choose.randrange(len(row))
        row[place], row[other] = row[other], row[place]
    elif kind == "neighbours" and place + 1 < len(row):
        row[place], row[place + 1] = row[place + 1], row[place]
    elif kind == "drop":
        del row[place]
    elif kind == "duplicate":
        row.insert(choose.randrange(len(row)), row[place])
    elif kind == "move":
        row.insert(choose.randrange(len(row)), row.pop(place))
    else:
        target = choose.choice(rows)
        moved = row.pop(place)
        target.insert(choose.randrange(len(target) + 1), moved)
    return Plan(**{**plan.__dict__, "actions": tuple(map(tuple, rows))})


EXECUTORS: list[tuple[Callable[[], Executor], bool]] = [
    (CSP, True), (Sequential, True), (GPipe, True), (lambda: GPipe(3), False), (PipeDream, False),
]  # fmt: skip


@settings(deadline=None, max_examples=400)
@given(
    st.sampled_from(EXECUTORS), st.integers(1, 3), st.integers(1, 2), st.integers(1, 3), st.integers(0, 3),
    st.integers(0, 50), st.integers(1, 4), st.randoms(use_true_random=False), st.integers(0, 3),
)  # fmt: skip
def test_the_validator_agrees_with_a_brute_force_interpreter(
    kind: tuple[Callable[[], Executor], bool],
    stages: int,
    segments: int,
    microbatches: int,
    delay: int,
    seed: int,
    options: int,
    choose: random.Random,
    mutations: int,
) -> None:
    executor = kind[0]()
    plan = make(
        executor, stages, segments if executor.composes_segments else 1, microbatches,
        delay if kind[1] else None, seed, options,
    )  # fmt: skip
    for _ in range(mutations):
        plan = mutate(plan, choose)
    judged = [violation for violation in find_violations(plan) if violation.rule in JUDGED]
    assert (not judged) == Interpreter(plan).keeps_its_contract(), judged


def test_mutations_are_of_both_kinds() -> None:
    """Or the agreement above would say little."""
    choose = random.Random(0)
    verdicts = Counter()
    for seed in range(150):
        plan = mutate(make(CSP(), 2, 1, 2, 2, seed, 4), choose)
        verdicts[any(v.rule in JUDGED for v in find_violations(plan))] += 1
    assert min(verdicts[True], verdicts[False]) > 10


def test_pipedream_breaks_the_causal_contract_and_the_report_says_where() -> None:
    space = AbstractSpace(4, 1)
    plan = Scenario(lambda: space.subnets(UniformSampler, 0), 5, 1, None, ()).plan(PipeDream(), Layout(2))
    assert find_violations(plan) == []
    claimed = Plan(**{**plan.__dict__, "contract": CAUSAL})
    violations = find_violations(claimed)
    assert {violation.rule for violation in violations} == {"read"}
    first = violations[0]
    assert (first.subnet, first.other, first.block, first.layer) == (1, 0, 0, "0")
    assert (first.stage, first.version, first.due) == (0, 0, 1)
    assert explain(claimed, first) == (
        "read: 0F1 reads layer '0' of block 0 at version 0, but version 1 is due under causal: "
        "the update of subnet 0 has not come yet.\n"
        "    stage 0: 0F0 >>0F1<< 0B0 0U0 0F2 ..."
    )


def broken(change: Callable[[list[list[PlannedAction]]], None], **more: object) -> list[str]:
    plan = make(CSP(), 2, 1, 1, None, 0, 3)
    rows = [list(row) for row in plan.actions]
    change(rows)
    changed = Plan(**{**plan.__dict__, "actions": tuple(map(tuple, rows)), **more})
    return [explain(changed, violation) for violation in find_violations(changed)]


def place(rows: list[list[PlannedAction]], text: str) -> tuple[list[PlannedAction], int]:
    for row in rows:
        for index, planned in enumerate(row):
            if str(planned.action) == text:
                return row, index
    raise AssertionError(text)


def test_a_missing_and_a_repeated_action_are_named() -> None:
    def drop(rows: list[list[PlannedAction]]) -> None:
        row, index = place(rows, "1B2")
        del row[index]

    assert "action: 1B2 must occur once, but is missing." in broken(drop)

    def repeat(rows: list[list[PlannedAction]]) -> None:
        row, index = place(rows, "0F1")
        row.append(row[index])

    assert any("0F1 must occur once, but stands at place" in text for text in broken(repeat))


def test_an_action_of_no_subnet_microbatch_stage_or_block_is_named() -> None:
    def change(rows: list[list[PlannedAction]]) -> None:
        first = rows[0][0]
        rows[0].append(first._replace(action=Action(0, Kind.FORWARD, 77)))
        rows[0].append(first._replace(action=Action(0, Kind.FORWARD, 1, 5)))
        rows[0].append(first._replace(action=Action(1, Kind.FORWARD, 1)))
        rows[0].append(first._replace(action=Action(0, Kind.FORWARD, 1, 0, 3)))
        rows[0][0] = first._replace(end_block=99)

    text = "\n".join(broken(change))
    assert "0F77 must be of one of the 7 subnets, but there is no 77" in text
    assert "0F1.5 must be of one of the 1 micro-batches" in text
    assert "1F1 must stand on stage 1, but stands on stage 0" in text
    assert "0.3F1 must be of one of the 1 segments" in text
    assert "must run blocks 0 to" in text


def test_a_backward_before_its_forward_and_an_update_before_its_backward_are_named() -> None:
    def swap(one: str, other: str) -> Callable[[list[list[PlannedAction]]], None]:
        def change(rows: list[list[PlannedAction]]) -> None:
            row, first = place(rows, one)
            _, second = place(rows, other)
            row[first], row[second] = row[second], row[first]

        return change

    assert any("order: 1F0 must come before 1B0, but comes after it" in t for t in broken(swap("1F0", "1B0")))
    assert any("order: 1B0 must come before 1U0, but comes after it" in t for t in broken(swap("1B0", "1U0")))


def test_stages_that_wait_for_each_other_are_a_deadlock() -> None:
    def change(rows: list[list[PlannedAction]]) -> None:
        row, index = place(rows, "0B0")
        row.insert(0, row.pop(index))

    text = "\n".join(broken(change))
    assert "deadlock: 0B0 waits for 1B0, which waits in turn: no stage can continue." in text


def test_times_must_follow_the_order() -> None:
    def change(rows: list[list[PlannedAction]]) -> None:
        row, index = place(rows, "1F0")
        row[index] = row[index]._replace(start=0)
        other, last = place(rows, "0B0")
        other[last] = other[last]._replace(end=other[last].start - 1)

    text = "\n".join(broken(change))
    assert "time: 1F0 must not start before 0F0 has ended" in text
    assert "time: 0B0 must not end before it starts" in text


def test_messages_must_match_the_plan() -> None:
    plan = make(CSP(), 2, 1, 1, None, 0, 3)
    messages = plan.messages
    lost = broken(lambda rows: None, messages=messages[1:])
    assert any("a message must carry" in t and "but there is none" in t for t in lost)
    twice = broken(lambda rows: None, messages=(*messages, messages[0]))
    assert any("which no other stage needs, or carries it again" in text for text in twice)
    wrong_way = broken(lambda rows: None, messages=(messages[0]._replace(source=1, target=0), *messages[1:]))
    assert any("message 0 must carry" in text and "but goes from 1 to 0" in text for text in wrong_way)
    late = broken(lambda rows: None, messages=(*messages[1:], messages[0]))
    assert any("must have a higher number" in text for text in late)
