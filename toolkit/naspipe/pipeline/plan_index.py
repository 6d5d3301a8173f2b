"""The actions of a plan by their place, and violations: what a plan does wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from naspipe.pipeline.action import Action, Kind
from naspipe.pipeline.plan import Plan


@dataclass(frozen=True)
class Violation:
    """One thing that a plan does wrong.

    Attributes:
        rule: ``action``, ``order``, ``time``, ``message``, ``deadlock``, ``read`` or ``update``.
        message: What must hold and what the plan does.
        stage: The stage of the action, or None.
        place: Place of the action among the actions of its stage, or None.
        subnet: Under the rules ``read`` and ``update``, as all that follows: the subnet that reads or updates.
        other: The subnet whose update is missing or too early.
        block: The block of the layer.
        layer: Name of the layer.
        version: The version that is read or updated.
        due: The version that is due.
    """

    rule: str
    message: str
    stage: int | None = None
    place: int | None = None
    subnet: int | None = None
    other: int | None = None
    block: int | None = None
    layer: str | None = None
    version: int | None = None
    due: int | None = None


class PlanIndex:
    """The place of each action of a plan.

    Attributes:
        plan: The plan.
        parts: Its parts.
        places: Stage and place of each action that belongs to the plan; of its first occurrence if it has several.
        violations: Actions that do not belong to the plan, and repetitions.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.parts = plan.parts
        self.places: dict[Action, tuple[int, int]] = {}
        self.violations: list[Violation] = []
        for stage, row in enumerate(plan.actions):
            for place, planned in enumerate(row):
                problem = self._problem(stage, planned.action, planned.first_block, planned.end_block)
                if planned.action in self.places:
                    first = self.places[planned.action]
                    problem = f"{planned.action} must occur once, but stands at place {first[1]} already"
                if problem:
                    self.violations.append(Violation("action", problem + ".", stage, place))
                else:
                    self.places[planned.action] = (stage, place)

    def _problem(self, stage: int, action: Action, first: int, end: int) -> str:
        plan = self.plan
        if action.stage != stage:
            return f"{action} must stand on stage {action.stage}, but stands on stage {stage}"
        if action.subnet >= len(plan.subnets):
            return f"{action} must be of one of the {len(plan.subnets)} subnets, but there is no {action.subnet}"
        if action.microbatch >= plan.microbatches:
            return f"{action} must be of one of the {plan.microbatches} micro-batches"
        if action.segment >= plan.segments:
            return f"{action} must be of one of the {plan.segments} segments of its stage"
        part = self.parts.of(action)
        cuts = plan.subnets[action.subnet].cuts[part : part + 2]
        if (first, end) != cuts:
            return f"{action} must run blocks {cuts[0]} to {cuts[1] - 1}, but runs {first} to {end - 1}"
        return ""

    def expected(self) -> Iterator[Action]:
        """Yield every action that the plan must have."""
        for subnet in range(len(self.plan.subnets)):
            for part in range(self.parts.count):
                for microbatch in range(self.plan.microbatches):
                    yield self.parts.action(part, Kind.FORWARD, subnet, microbatch)
                    yield self.parts.action(part, Kind.BACKWARD, subnet, microbatch)
                yield self.parts.action(part, Kind.UPDATE, subnet)
