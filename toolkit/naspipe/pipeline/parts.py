"""The parts of a pipeline: segments of stages, numbered in the order in which a forward passes them."""

from __future__ import annotations

from typing import NamedTuple

from naspipe.pipeline.action import Action, Kind
from naspipe.pipeline.partition import Cuts


class PipelineParts(NamedTuple):
    """Stages and their segments; part p is segment p % segments of stage p // segments.

    Attributes:
        stages: Pipeline stages.
        segments: Segments of each stage.
    """

    stages: int
    segments: int

    @property
    def number(self) -> int:
        """Number of parts."""
        return self.stages * self.segments

    @property
    def last(self) -> int:
        """The last part, which computes the loss."""
        return self.stages * self.segments - 1

    def of(self, action: Action) -> int:
        """Return the part that an action runs on."""
        return action.stage * self.segments + action.segment

    def of_stage(self, stage: int) -> range:
        """Return the parts of a stage."""
        return range(stage * self.segments, (stage + 1) * self.segments)

    def stage(self, part: int) -> int:
        """Return the stage of a part."""
        return part // self.segments

    def place(self, part: int) -> tuple[int, int]:
        """Return stage and segment of a part."""
        return divmod(part, self.segments)

    def action(self, part: int, kind: Kind, subnet: int, microbatch: int = 0) -> Action:
        """Return an action of a part."""
        stage, segment = divmod(part, self.segments)
        return Action(stage, kind, subnet, microbatch, segment)

    def target(self, action: Action) -> int | None:
        """Return the part that needs the result of a forward or a backward, or None: no part does."""
        if action.kind is Kind.UPDATE:
            return None
        part = self.of(action) + (1 if action.kind is Kind.FORWARD else -1)
        return part if 0 <= part <= self.last else None

    def source(self, action: Action) -> int | None:
        """Return the part whose result a forward or a backward needs, or None: it starts from data or the loss."""
        if action.kind is Kind.UPDATE:
            return None
        part = self.of(action) - (1 if action.kind is Kind.FORWARD else -1)
        return part if 0 <= part <= self.last else None

    def blocks_of_stage(self, stage: int, cuts: Cuts) -> range:
        """Return the blocks of a stage, for a partition into all parts."""
        return range(cuts[stage * self.segments], cuts[(stage + 1) * self.segments])
