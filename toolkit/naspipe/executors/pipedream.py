"""PipeDream: 1F1B without a flush; forwards read stale weights, and a unit's backward reads those of its forward.

Source: Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019.
"""

from __future__ import annotations

from collections.abc import Sequence

from naspipe.pipeline.action import Action, Kind
from naspipe.pipeline.contract import Contract
from naspipe.pipeline.executor import Executor, PipelineShape, StageView


class PipeDream(Executor):
    """One forward, one backward in turn over all subnets, without a flush; weights are stale.

    On stage s of S, the forward of a subnet misses the updates of at most the last S - s - 1 subnets. So results
    depend on the number of stages. Source: Narayanan et al., "PipeDream", SOSP 2019.
    """

    def contract(self, shape: PipelineShape) -> Contract:
        """Return *stale(S - 1)*."""
        return Contract("stale", shape.stages - 1)

    def window(self, shape: PipelineShape) -> int:
        """Return the stages: stage 0 runs that many forwards ahead."""
        return shape.stages

    def choose(self, ready: Sequence[Action], view: StageView) -> Action | None:
        """Take a forward while fewer than S - s are ahead and there is one left, else a backward."""
        units = view.shape.subnets * view.shape.microbatches
        ahead = view.forwards - view.backwards
        forward = view.forwards < units and ahead < view.shape.stages - view.stage
        kind = Kind.FORWARD if forward else Kind.BACKWARD
        return min(
            (action for action in ready if action.kind is kind),
            key=lambda action: (action.subnet, action.microbatch),
            default=None,
        )
