"""Trials: the architectures that a search evaluated, and the Pareto front of them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from naspipe.records import TrialLine
from naspipe.search.objective import Objective, require_objectives
from naspipe.space import Architecture, SearchSpace


@dataclass(frozen=True)
class Trial:
    """One architecture that a search evaluated.

    Attributes:
        index: Its number in the search, from 0.
        architecture: The architecture.
        metrics: All metrics; empty if the trial failed.
        reason: The reason of the failure, or None.
    """

    index: int
    architecture: Architecture
    metrics: dict[str, float]
    reason: str | None = None

    def values(self, objectives: Sequence[Objective]) -> tuple[float, ...] | None:
        """Return the values of the objectives, or None if the trial failed."""
        if self.reason is not None:
            return None
        return tuple(self.metrics[objective.name] for objective in objectives)

    def describe(self, objectives: Sequence[Objective]) -> str:
        """Return the objectives, or the reason of the failure, as text for people."""
        if self.reason is not None:
            return f"failed: {self.reason}"
        return ", ".join(f"{o.name} {self.metrics[o.name]:.6g}" for o in objectives)

    def to_record(self, space: SearchSpace) -> dict[str, Any]:
        """Return the record for ``trials.jsonl``."""
        return {
            "trial": self.index,
            "text": space.format(self.architecture),
            "architecture": dict(self.architecture),
            "state": "complete" if self.reason is None else "failed",
            "metrics": self.metrics,
            "reason": self.reason,
        }

    @classmethod
    def from_record(cls, record: object, space: SearchSpace, objectives: Sequence[Objective] = ()) -> Trial:
        """Read a record of ``trials.jsonl``.

        Raises:
            ValueError: It is malformed, or lacks an objective.
            InputError: Its architecture does not belong to the space.
        """
        line = TrialLine.model_validate(record)
        architecture = space.architecture(Architecture(line.architecture))
        if line.reason is None:
            require_objectives(line.metrics, objectives)
        return cls(line.trial, architecture, line.metrics, line.reason)


def complete_trials(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that did not fail, in their order."""
    return [trial for trial in trials if trial.reason is None]


def costs_of(trial: Trial, objectives: Sequence[Objective]) -> tuple[float, ...]:
    """Return the objectives of a complete trial as costs, for which smaller is better."""
    return tuple(objective.cost(trial.metrics[objective.name]) for objective in objectives)


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Tell whether ``one`` is at most as high as ``other`` in every cost, and lower in at least one."""
    return one != other and all(map(operator.le, one, other))


def pareto_front(trials: Sequence[Trial], objectives: Sequence[Objective]) -> list[Trial]:
    """Return the trials that no other trial dominates, sorted by the first objective, the best first.

    A trial dominates another if it is at least as good in every objective, and better in at least one. Of equal trials
    all are on the front, the earlier one first.
    """
    front: list[tuple[tuple[float, ...], Trial]] = []
    for trial in sorted(complete_trials(trials), key=lambda trial: (costs_of(trial, objectives), trial.index)):
        # In this order only earlier trials can dominate; if one does, then also one on the front.
        costs = costs_of(trial, objectives)
        if not any(dominates(other, costs) for other, _ in front):
            front.append((costs, trial))
    return [trial for _, trial in front]
