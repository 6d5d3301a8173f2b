"""1F1B with a flush after each subnet: like GPipe, with fewer activations in memory.

Source: Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, in the
synchronous form of Fan et al., "DAPPLE: A Pipelined Data Parallel Approach", PPoPP 2021.
"""

from __future__ import annotations

from collections.abc import Sequence

from naspipe.pipeline.action import Action, Kind
from naspipe.pipeline.contract import Contract
from naspipe.pipeline.executor import Executor, PipelineShape, StageView


class OneFOneB(Executor):
    """One forward, one backward in turn within each subnet, and a flush after it; equals sequential training.

    Stage s of S runs at most S - s forwards ahead. Source: Fan et al., "DAPPLE", PPoPP 2021.
    """

    def contract(self, shape: PipelineShape) -> Contract:
        """Return *flush(1)*."""
        return Contract("flush", 1)

    def window(self, shape: PipelineShape) -> int:
        """Return 1."""
        return 1

    def choose(self, ready: Sequence[Action], view: StageView) -> Action | None:
        """Take a forward while fewer than S - s are ahead and the subnet has one left, else a backward."""
        microbatches = view.shape.microbatches
        through = (view.backwards // microbatches + 1) * microbatches
        ahead = view.forwards - view.backwards
        forward = view.forwards < through and ahead < view.shape.stages - view.stage
        kind = Kind.FORWARD if forward else Kind.BACKWARD
        return next((action for action in ready if action.kind is kind), None)
