"""One subnet after another: the reference that every causal executor equals bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

from naspipe.executors.executor import Executor
from naspipe.pipeline.action import Action, Kind


class Sequential(Executor):
    """One subnet after another, each micro-batch's backward right after its forward."""

    contract = "causal"

    def choose(self, ready: Sequence[Action]) -> Action:
        """Take a backward if there is one: it frees what its forward holds."""
        return next((action for action in ready if action.kind is Kind.BACKWARD), ready[0])
