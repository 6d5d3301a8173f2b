"""One subnet after another: the reference that every causal executor equals bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

from naspipe.pipeline.action import Action
from naspipe.pipeline.contract import CAUSAL, Contract
from naspipe.pipeline.executor import Executor, PipelineShape, StageView


class Sequential(Executor):
    """One subnet after another, each micro-batch's backward as soon as it can run."""

    def contract(self, shape: PipelineShape) -> Contract:
        """Return *causal*."""
        return CAUSAL

    def window(self, shape: PipelineShape) -> int:
        """Return 1."""
        return 1

    def choose(self, ready: Sequence[Action], view: StageView) -> Action | None:
        """Take a backward if there is one: it frees the memory that its forward holds."""
        return max(ready, key=lambda action: action.kind)
