"""The parts of a pipeline: segments of stages, numbered in the order in which a forward passes them."""

from __future__ import annotations

from dataclasses import dataclass

from naspipe.pipeline.action import Action, Kind
from naspipe.pipeline.partition import Cuts


@dataclass(frozen=True)
class PipelineParts:
    """Stages and their segments; part p is segment p % segments of stage p // segments.

    Attributes:
        stages: Pipeline stages.
        segments: Segments of each stage.
    """

    stages: int
    segments: int

    @property
    def count(self) -> int:
        """The number of parts."""
        return self.stages * self.segments

    @property
    def last(self) -> int:
        """The last part, which computes the loss."""
        return self.count - 1

    def of(self, action: Action) -> int:
        """Return the part that an action runs on."""
        return action.stage * self.segments + action.segment

    def of_stage(self, stage: int) -> range:
        """Return the parts of a stage."""
        return range(stage * self.segments, (stage + 1) * self.segments)

    def stage(self, part: int) -> int:
        """Return the stage of a part."""
        return part // self.segments

    def action(self, part: int, kind: Kind, subnet: int, microbatch: int = 0) -> Action:
        """Return an action of a part."""
        stage, segment = divmod(part, self.segments)
        return Action(stage, kind, subnet, microbatch, segment)

    def target(self, action: Action) -> int | None:
        """Return the part that needs the result of a forward or a backward, or None: no part does."""
        return self._neighbour(action, 1)

    def source(self, action: Action) -> int | None:
        """Return the part whose result a forward or a backward needs, or None: it starts from data or the loss."""
        return self._neighbour(action, -1)

    def leaves_stage(self, action: Action) -> bool:
        """Tell whether a part of another stage needs the result of an action."""
        part = self.target(action)
        return part is not None and self.stage(part) != action.stage

    def target_action(self, action: Action) -> Action | None:
        """Return the action of another part that needs an action's result, or None."""
        part = self.target(action)
        return None if part is None else self.action(part, action.kind, action.subnet, action.microbatch)

    def source_action(self, action: Action) -> Action | None:
        """Return the action of another part whose result an action needs, or None."""
        part = self.source(action)
        return None if part is None else self.action(part, action.kind, action.subnet, action.microbatch)

    def blocks_of_stage(self, stage: int, cuts: Cuts) -> range:
        """Return the blocks of a stage, for a partition into all parts."""
        parts = self.of_stage(stage)
        return range(cuts[parts.start], cuts[parts.stop])

    def _neighbour(self, action: Action, step: int) -> int | None:
        """Return the part that comes so many parts later in the direction of a pass, or None."""
        if action.kind is Kind.UPDATE:
            return None
        part = self.of(action) + (step if action.kind is Kind.FORWARD else -step)
        return part if 0 <= part < self.count else None
