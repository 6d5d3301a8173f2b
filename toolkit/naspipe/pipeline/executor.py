"""Executor: a policy, the pure rule that says which ready action a stage takes next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from naspipe.errors import InputError
from naspipe.pipeline.action import Action
from naspipe.pipeline.contract import Contract
from naspipe.pipeline.parts import PipelineParts


@dataclass(frozen=True)
class PipelineShape:
    """The size of a pipeline and of its training.

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

    @property
    def parts(self) -> PipelineParts:
        """The segments of all stages."""
        return PipelineParts(self.stages, self.segments)


@dataclass
class StageView:
    """What a policy may know of a stage besides its ready actions.

    Attributes:
        stage: Index of the stage.
        shape: The size of the pipeline.
        chain: Returns, for a ready action, the longest causal chain of the admitted subnets from its start, in
            ticks; and the share of the chain after the action's own pass (the forward or backward of its
            subnet), which is 0 if no other subnet is in the chain.
        work: Returns the work that the admitted subnets have not started yet, in ticks, divided by the stages.
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

    A policy is a function of integers. It sees actions, never tensors, devices or clocks, and always makes the
    same choice from the same view. The contract decides which actions are ready. A policy chooses no updates:
    a stage does each of them as soon as the contract allows.
    """

    composes_segments = False
    """Whether a stage may run its blocks in several segments."""

    @abstractmethod
    def contract(self, shape: PipelineShape) -> Contract:
        """Return the contract that all plans keep."""

    @abstractmethod
    def window(self, shape: PipelineShape) -> int:
        """Return how many subnets may be in flight, at least 1."""

    @abstractmethod
    def choose(self, ready: Sequence[Action], view: StageView) -> Action | None:
        """Return the action that an idle stage takes next, or None to wait until another is ready.

        Args:
            ready: Forwards and backwards that can start now, at least one, in the order in which they became
                ready.
            view: The stage.
        """


def require_support(executor: Executor, shape: PipelineShape, window: int | None) -> None:
    """Raise an error unless an executor can run a pipeline.

    Args:
        executor: The executor.
        shape: The size of the pipeline.
        window: Subnets in flight at most, or None: the executor says.

    Raises:
        InputError: The executor does not support the window, the segments or the delay.
    """
    name, contract = type(executor).__name__, executor.contract(shape)
    if window is not None and window < executor.window(shape) and not contract.allows_smaller_window:
        raise InputError(
            f"executor {name} follows a fixed pattern and needs {executor.window(shape)} subnets in flight, but "
            f"window is {window}. Set no window."
        )
    if shape.segments > 1 and not executor.composes_segments:
        raise InputError(
            f"executor {name} runs each stage in one segment, but segments is {shape.segments}. Use csp, or "
            "set segments to 1."
        )
    if shape.delay is not None and not contract.allows_delay:
        raise InputError(
            f"only the contracts causal and flush(1) allow a delay, but executor {name} keeps {contract}, "
            f"which governs all layers, and delay is {shape.delay}. Set no delay."
        )
