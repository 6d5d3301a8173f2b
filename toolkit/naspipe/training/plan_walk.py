"""The walk through the plan: actions are announced ahead of time, and drains are waited for."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from naspipe.pipeline.action import PlannedAction
from naspipe.pipeline.planner import Planner
from naspipe.training.feed import SubnetFeed
from naspipe.training.subnet_stream import SubnetStream
from naspipe.training.tensor_spec import STAMP_BYTES

LOOKAHEAD = 64
"""Number of actions by which announcing is ahead of running."""


class Drain(NamedTuple):
    """A drain of the pipeline: all subnets so far have been updated, and no other has begun.

    Attributes:
        subnet: The next subnet.
        sampler: The sampler's state before it draws that subnet.
    """

    subnet: int
    sampler: dict[str, Any]


class PlanWalk:
    """Yields the plan's actions in the order of their starts.

    Attributes:
        taken: Number of subnets that the plan has reached, those before the first included.
    """

    def __init__(
        self,
        planner: Planner,
        stream: SubnetStream,
        feed: SubnetFeed,
        first: int = 0,
        is_drained: Callable[[int], bool] = lambda subnet: False,
    ) -> None:
        """Prepare the walk; nothing is planned yet.

        Args:
            planner: A new planner, whose subnets the stream draws.
            stream: Keeps the sampler's state at each drain.
            feed: Takes the subnets from the stream when the plan reaches them.
            first: The first subnet of the planner.
            is_drained: Tells whether the pipeline is drained before a subnet that the plan has reached.
        """
        self._planner = planner
        self._stream = stream
        self._feed = feed
        self._is_drained = is_drained
        self.taken = first
        # A digest of all actions and subnets so far. Processes compare it to check that they follow one plan.
        self._digest = hashlib.blake2b(digest_size=STAMP_BYTES)

    def actions(
        self, announce: Callable[[PlannedAction, bytes], None], on_drain: Callable[[Drain], None]
    ) -> Iterator[PlannedAction]:
        """Yield the actions, each some time after it was announced; iterate once.

        Processes wait for each other at a drain, and planning waits for the process that decides about drains. So that
        process must not wait at a drain while another one plans beyond it. Therefore nothing is planned beyond a drain
        before all earlier actions have been yielded.

        Args:
            announce: Called with each action and the digest of the plan up to it.
            on_drain: Called at each drain, after all earlier actions were yielded and before a later one is announced.
        """
        waiting: deque[PlannedAction] = deque()
        for planned in self._planner.run():
            drain = self._reach(planned.action.subnet)
            if drain is not None:
                while waiting:
                    yield waiting.popleft()
                on_drain(drain)
            self._digest.update(repr(planned).encode())
            announce(planned, self._digest.digest())
            waiting.append(planned)
            if len(waiting) > LOOKAHEAD:
                yield waiting.popleft()
        yield from waiting

    def final_drain(self) -> Drain | None:
        """Return the drain at which the training was stopped, or None: it was not stopped."""
        return self._drain() if self._is_drained(self.taken) else None

    def _reach(self, subnet: int) -> Drain | None:
        """Take all subnets up to this one; return the drain before one of them, or None."""
        drain = None
        while self.taken <= subnet:
            if self._is_drained(self.taken):
                assert drain is None, "there is an action between two drains"
                drain = self._drain()
            drawn = self._feed.take()
            assert drawn.number == self.taken
            self._digest.update(drawn.architecture.to_json().encode())
            self.taken += 1
        return drain

    def _drain(self) -> Drain:
        return Drain(self.taken, self._stream.sampler_state(self.taken))
