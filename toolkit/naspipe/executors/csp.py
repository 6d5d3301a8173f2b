"""Causal synchronous parallelism: subnets overtake each other, but never read a layer too early.

Source: Zhao et al., "NASPipe: High Performance and Reproducible Pipeline Parallel Supernet Training via
Causal Synchronous Parallelism", ASPLOS 2022. The paper takes the earliest subnet first. Here, where causal chains
limit the run, the action with the longest remaining chain comes first (``docs/schedules.md`` has the figures).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from naspipe.pipeline.action import Action
from naspipe.pipeline.contract import CAUSAL, Contract
from naspipe.pipeline.executor import Executor, PipelineShape, StageView


class CSP(Executor):
    """Causal synchronous parallelism: as many subnets at once as causal order allows.

    Source: Zhao et al., "NASPipe", ASPLOS 2022.
    """

    composes_segments = True

    def __init__(self, priority: Literal["chain", "backward"] = "chain") -> None:
        """Choose the priority.

        Args:
            priority: ``chain``: the longest remaining causal chain first; ``backward``: backwards first,
                then the earliest subnet, as in the paper.
        """
        self.priority = priority

    def contract(self, shape: PipelineShape) -> Contract:
        """Return *causal*."""
        return CAUSAL

    def window(self, shape: PipelineShape) -> int:
        """Return enough to fill the stages four times over, at most delay + 1."""
        window = 4 * shape.stages
        return window if shape.delay is None else min(window, shape.delay + 1)

    def choose(self, ready: Sequence[Action], view: StageView) -> Action | None:
        """Take the action with the highest priority."""
        if len(ready) == 1:
            return ready[0]
        urgency = _urgency(ready, view) if self.priority == "chain" else dict.fromkeys(ready, 0)
        return min(ready, key=lambda a: (-urgency[a], -a.kind, a.subnet, a.microbatch, -a.segment))


def _urgency(ready: Sequence[Action], view: StageView) -> dict[Action, int]:
    """Return for each action the ticks of its causal chain after its own pass; 0 if the chain does not limit the run.

    A chain limits the run if it is at least nearly as long as the work ahead of a stage.
    """
    limit = 9 * view.work()
    urgency = {}
    for action in ready:
        chain, after = view.chain(action)
        urgency[action] = after if 10 * chain > limit else 0
    return urgency
