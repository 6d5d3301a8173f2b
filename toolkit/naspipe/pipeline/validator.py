"""The validator: judges a plan by its actions alone, independently of the planner.

``find_violations`` returns everything that a plan does wrong. This module checks the form that every plan must have;
``pipeline/versions.py`` checks the contract that the plan claims.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from naspipe.pipeline.action import Action, Kind
from naspipe.pipeline.plan import Plan
from naspipe.pipeline.plan_index import PlanIndex, Violation
from naspipe.pipeline.versions import find_recorded_violations, find_version_violations

CONTEXT = 3
"""Actions shown before and after the action of a violation."""


def find_violations(plan: Plan) -> list[Violation]:
    """Return everything that a plan does wrong; an empty list means that it keeps its contract."""
    index = PlanIndex(plan)
    return [
        *index.violations,
        *_missing(index),
        *_wrong_order(index),
        *_wrong_times(index),
        *_wrong_messages(index),
        *find_version_violations(index),
        *find_recorded_violations(index),
    ]


def has_form(violations: Sequence[Violation]) -> bool:
    """Tell whether a plan's statistics can be computed: none of its violations is one of form."""
    return all(violation.rule not in ("action", "order", "time") for violation in violations)


def explain(plan: Plan, violation: Violation) -> str:
    """Return the text of a violation, with its action marked among the actions around it."""
    if violation.stage is None or violation.place is None:
        return f"{violation.rule}: {violation.message}"
    row = plan.actions[violation.stage]
    first = max(0, violation.place - CONTEXT)
    shown = [
        f">>{planned.action}<<" if place == violation.place else str(planned.action)
        for place, planned in enumerate(row[first : violation.place + CONTEXT + 1], start=first)
    ]
    before = "... " if first else ""
    after = " ..." if violation.place + CONTEXT + 1 < len(row) else ""
    actions = f"{before}{' '.join(shown)}{after}"
    return f"{violation.rule}: {violation.message}\n    stage {violation.stage}: {actions}"


def _missing(index: PlanIndex) -> Iterator[Violation]:
    for action in index.expected():
        if action not in index.places:
            yield Violation("action", f"{action} must occur once, but is missing.", action.stage)


def _wrong_order(index: PlanIndex) -> Iterator[Violation]:
    """Check the order on each stage: F before B before U, micro-batches in order, segments in order."""
    for action, (stage, place) in index.places.items():
        part = index.parts.of(action)
        before: list[Action] = []
        if action.kind is Kind.BACKWARD:
            before.append(action._replace(kind=Kind.FORWARD))
            if action.microbatch:
                before.append(action._replace(microbatch=action.microbatch - 1))
        elif action.kind is Kind.UPDATE:
            last = index.plan.microbatches - 1
            before.append(index.parts.action(part, Kind.BACKWARD, action.subnet, last))
        source = index.parts.source_action(action)
        if source is not None and source.stage == stage:
            before.append(source)
        for other in before:
            if other in index.places and index.places[other][1] > place:
                yield Violation("order", f"{other} must come before {action}, but comes after it.", stage, place)


def _wrong_times(index: PlanIndex) -> Iterator[Violation]:
    plan = index.plan
    for stage, row in enumerate(plan.actions):
        free = 0
        for place, planned in enumerate(row):
            if planned.end < planned.start:
                message = f"{planned.action} must not end before it starts, at {planned.start}."
                yield Violation("time", message, stage, place)
            if planned.start < free:
                message = (
                    f"{planned.action} must not start before the action in front of it has ended, at tick "
                    f"{free}, but starts at {planned.start}."
                )
                yield Violation("time", message, stage, place)
            free = max(free, planned.end)
    for action, (stage, place) in index.places.items():
        source = index.parts.source_action(action)
        if source in index.places and source is not None:
            other_stage, other_place = index.places[source]
            end = plan.actions[other_stage][other_place].end
            start = plan.actions[stage][place].start
            if start < end:
                message = f"{action} must not start before {source} has ended, at {end}, but starts at {start}."
                yield Violation("time", message, stage, place)


def _wrong_messages(index: PlanIndex) -> Iterator[Violation]:
    """Check that each result that leaves its stage has one message, and that the order of messages cannot deadlock."""
    numbers: dict[Action, int] = {}
    wanted = {}
    for action, (stage, place) in index.places.items():
        source = index.parts.source_action(action)
        if source is not None and source.stage != stage:
            wanted[str(source)] = (source, source.stage, stage, place)
    for number, message in enumerate(index.plan.messages):
        if message.action not in wanted:
            text = f"message {number} carries {message.action}, which no other stage needs, or carries it again."
            yield Violation("message", text)
            continue
        source, from_stage, to_stage, place = wanted.pop(message.action)
        if (message.source, message.target) != (from_stage, to_stage):
            text = (
                f"message {number} must carry {source} from stage {from_stage} to {to_stage}, but goes from "
                f"{message.source} to {message.target}."
            )
            yield Violation("message", text, to_stage, place)
        numbers[source] = number
    for source, from_stage, to_stage, place in wanted.values():
        text = f"a message must carry {source} from stage {from_stage} to {to_stage}, but there is none."
        yield Violation("message", text, to_stage, place)
    for stage, row in enumerate(index.plan.actions):
        highest = -1
        for place, planned in enumerate(row):
            source = index.parts.source_action(planned.action) if planned.action in index.places else None
            received = numbers.get(source, -1) if source is not None and source.stage != stage else -1
            sent = numbers.get(planned.action)
            if sent is None:
                continue
            if sent < highest or sent < received:
                text = (
                    f"message {sent} of {planned.action} must have a higher number than the messages that its stage "
                    f"sent before and the one that the action received, at least {max(highest, received) + 1}."
                )
                yield Violation("message", text, stage, place)
            highest = max(highest, sent)
