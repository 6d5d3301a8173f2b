"""Executor: a policy, the pure rule that says which ready action a stage takes next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from naspipe.pipeline.action import Action
from naspipe.pipeline.contract import Contract


@dataclass(frozen=True)
class PipelineShape:
    """The size of what is planned.

    Attributes:
        stages: Pipeline stages.
        microbatches: Micro-batches of each batch.
        subnets: Subnets to train.
        segments: Segments of each stage.
        delay: The delay D of always-active layers; None if there are none, or the contract has no delay.
    """

    stages: int
    microbatches: int
    subnets: int
    segments: int = 1
    delay: int | None = None


@dataclass
class StageView:
    """What a policy may see of a stage besides its ready actions.

    Attributes:
        stage: Index of the stage.
        shape: The size of the pipeline.
        chain: Returns what of the admitted subnets must happen one after another from the start of a ready
            action on, at the longest, and how much of it comes after the action's own pass (the forward or
            the backward of its subnet), 0 if no other subnet waits in it; in ticks.
        work: Returns what the admitted subnets have still to start, in ticks, divided by the stages.
        forwards: Forwards that the stage has started.
        backwards: Backwards that the stage has started.
    """

    stage: int
    shape: PipelineShape
    chain: Callable[[Action], tuple[int, int]]
    work: Callable[[], int]
    forwards: int = 0
    backwards: int = 0


class Executor(ABC):
    """A policy with the contract it keeps.

    A policy is a function of integers: it sees actions, never tensors, devices or clocks, and what it sees
    always gives the same choice. Which actions are ready follows from the contract; updates are not
    chosen: each is done as soon as the contract allows.
    """

    composes_segments = False
    """Whether a stage may run its blocks in several segments."""

    @abstractmethod
    def contract(self, shape: PipelineShape) -> Contract:
        """Return what the plans promise about reads and writes."""

    @abstractmethod
    def window(self, shape: PipelineShape) -> int:
        """Return how many subnets may be in flight, at least 1."""

    @abstractmethod
    def choose(self, ready: Sequence[Action], view: StageView) -> Action | None:
        """Return the action that an idle stage takes next, or None to wait for another.

        Args:
            ready: Forwards and backwards that could start now, at least one, in the order in which they
                became ready.
            view: The stage.
        """
