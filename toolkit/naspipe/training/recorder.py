"""The recorder: the times of the actions of a real run, and the versions of layers that they read or changed."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from naspipe.pipeline.action import PlannedAction
from naspipe.pipeline.plan import Plan
from naspipe.training.part import LayerVersion

RecordedAction = tuple[PlannedAction, int, int, tuple[LayerVersion, ...]]
"""A planned action, its start and end in microseconds, and the versions that it read or changed."""


class Recorder:
    """Records actions by the machine's clock, so the times of several processes can be compared."""

    wanted = True

    def __init__(self, device: str = "cpu") -> None:
        """Begin without actions.

        Args:
            device: ``cpu`` or ``cuda``. A GPU is synchronized whenever the clock is read, which slows training down.
        """
        self._is_gpu = device == "cuda"
        self.actions: list[RecordedAction] = []
        self._started = 0

    def start(self) -> None:
        """Note that an action starts; everything that it needs has arrived."""
        self._started = self._now()

    def end(self, planned: PlannedAction, versions: Sequence[LayerVersion]) -> None:
        """Note that an action has ended."""
        ended = self._now()
        self.actions.append((planned, self._started // 1000, ended // 1000, tuple(versions)))

    def _now(self) -> int:
        if self._is_gpu:
            torch.cuda.synchronize()
        return time.monotonic_ns()


class NoRecorder:
    """Records nothing."""

    wanted = False

    def start(self) -> None:
        """Do nothing."""

    def end(self, planned: PlannedAction, versions: Sequence[LayerVersion]) -> None:
        """Do nothing."""


NO_RECORDER = NoRecorder()


def trace_of(plan: Plan, recorded: Sequence[RecordedAction]) -> Plan:
    """Return a plan with measured times, in microseconds since the first start, and the versions.

    Args:
        plan: The plan that was run.
        recorded: The recorded actions of all stages; those of one stage are in order.
    """
    first = min((start for _, start, _, _ in recorded), default=0)
    actions: list[list[PlannedAction]] = [[] for _ in range(plan.stages)]
    versions: list[list[tuple[LayerVersion, ...]]] = [[] for _ in range(plan.stages)]
    for planned, start, end, seen in recorded:
        stage = planned.action.stage
        actions[stage].append(planned._replace(start=start - first, end=end - first))
        versions[stage].append(seen)
    return Plan(
        **{
            **vars(plan),
            "actions": tuple(map(tuple, actions)),
            "versions": tuple(map(tuple, versions)),
            "bound": None,
        }
    )
