"""The stream of subnets: each is drawn once, for the planner and then for the trainer."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from naspipe.errors import NaspipeError, TrainingError
from naspipe.pipeline.subnet import SubnetShape
from naspipe.space import Architecture
from naspipe.training.planning import Planning


class DrawnSubnet(NamedTuple):
    """A subnet that has been drawn.

    Attributes:
        number: Its place in the sequence.
        architecture: Its architecture.
        layers: For every block the names of the layers that it uses.
    """

    number: int
    architecture: Architecture
    layers: list[list[str]]


class SubnetStream:
    """Draws subnets for the planner, and gives them to the trainer in the same order.

    The sampler is started when the planner asks for the first subnet. Until the training has ended, nothing else may
    start it.
    """

    def __init__(
        self,
        planning: Planning,
        first: int = 0,
        state: dict[str, Any] | None = None,
        is_drained: Callable[[int], bool] = lambda index: False,
    ) -> None:
        """Prepare the stream; nothing is drawn yet.

        Args:
            planning: Has the sampler, and describes architectures for the planner.
            first: The first subnet to draw.
            state: The sampler's state before it draws the first subnet; None: the sequence begins.
            is_drained: Tells whether the pipeline is drained before the subnet that is drawn next. If so, the sampler's
                state is kept for a checkpoint.
        """
        self._planning = planning
        self._sampler = planning.components.sampler
        self._state = state
        self._is_drained = is_drained
        self._next = first
        self._drawn: deque[DrawnSubnet] = deque()
        self._states: dict[int, dict[str, Any]] = {}

    def shapes(self) -> Iterator[SubnetShape]:
        """Yield the layers and costs of each subnet, without end; iterate once.

        Raises:
            TrainingError: The sampler failed, or drew something that is not an architecture of the space.
        """
        self._planning.start(self._sampler)
        if self._state is not None:
            self._sampler.restore(self._state)
        space = self._planning.components.space
        while True:
            if self._is_drained(self._next):
                self._states[self._next] = self._copy_state()
            try:
                architecture = space.architecture(self._sampler.draw(self._next))
                shape = self._planning.describe(architecture)
            except Exception as error:
                kind = "" if isinstance(error, NaspipeError) else f"{type(error).__name__}: "
                raise TrainingError(
                    f"supernet training, subnet {self._next}: sampler {type(self._sampler).__name__} failed: "
                    f"{kind}{error}"
                ) from error
            layers = [[layer.name for layer in block] for block in shape.layers]
            self._drawn.append(DrawnSubnet(self._next, architecture, layers))
            self._next += 1
            yield shape

    def take(self) -> DrawnSubnet:
        """Return the next subnet that the trainer has not taken; the planner has taken it before."""
        return self._drawn.popleft()

    def sampler_state(self, index: int) -> dict[str, Any]:
        """Return the sampler's state before a subnet; the pipeline is drained there. Call it once for each."""
        return self._copy_state() if index == self._next else self._states.pop(index)

    def _copy_state(self) -> dict[str, Any]:
        return copy.deepcopy(self._sampler.state())
