"""GPipe: all forwards of a bulk, then all its backwards, then its updates.

Source: Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism",
NeurIPS 2019. Bulks of several subnets are the baseline of Zhao et al., "NASPipe", ASPLOS 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from naspipe.pipeline.action import Action, Kind
from naspipe.pipeline.contract import Contract
from naspipe.pipeline.executor import Executor, PipelineShape, StageView


class GPipe(Executor):
    """All forwards of a bulk of subnets, then all backwards, then all updates; then the pipeline is empty.

    With bulk 1 it equals sequential training. Source: Huang et al., "GPipe", NeurIPS 2019.
    """

    def __init__(self, bulk: Annotated[int, Field(ge=1)] = 1) -> None:
        """Choose the bulk.

        Args:
            bulk: Number of subnets between two flushes; all of them read the weights at its start.
        """
        self.bulk = bulk

    def contract(self, shape: PipelineShape) -> Contract:
        """Return *flush(bulk)*."""
        return Contract("flush", self.bulk)

    def window(self, shape: PipelineShape) -> int:
        """Return the bulk."""
        return self.bulk

    def choose(self, ready: Sequence[Action], view: StageView) -> Action | None:
        """Take the forwards of the bulk in order, then its backwards in order."""
        units = self.bulk * view.shape.microbatches
        flushed = view.backwards // units * units
        through = min(flushed + units, view.shape.subnets * view.shape.microbatches)
        kind = Kind.FORWARD if view.forwards < through else Kind.BACKWARD
        return min(
            (action for action in ready if action.kind is kind),
            key=lambda action: (action.subnet, action.microbatch),
            default=None,
        )
