"""The planner: streams the actions of a stage, as an executor's policy chooses them.

Plans one stage and one subnet at a time: what is ready of a subnet is its next forward, its next
backward and, after all of them, its update.
"""

from __future__ import annotations

from collections.abc import Iterator

from naspipe.errors import NaspipeError
from naspipe.executors.executor import Executor
from naspipe.pipeline.action import Action, Kind


def plan_actions(executor: Executor, subnets: int, microbatches: int) -> Iterator[Action]:
    """Yield the actions of the only stage, in order.

    Args:
        executor: Says which of the ready actions comes next.
        subnets: Number of subnets.
        microbatches: Micro-batches of each batch.

    Raises:
        NaspipeError: The executor chose an action that is not ready.
    """
    for subnet in range(subnets):
        forwards = backwards = 0
        while True:
            ready = []
            if forwards < microbatches:
                ready.append(Action(0, Kind.FORWARD, subnet, forwards))
            if backwards < forwards:
                ready.append(Action(0, Kind.BACKWARD, subnet, backwards))
            if not ready:
                break
            action = executor.choose(tuple(ready))
            if action not in ready:
                raise NaspipeError(
                    f"executor {type(executor).__name__} must choose one of the ready actions, "
                    f"{', '.join(map(str, ready))}, but chose {action}."
                )
            forwards += action.kind is Kind.FORWARD
            backwards += action.kind is Kind.BACKWARD
            yield action
        yield Action(0, Kind.UPDATE, subnet)
