"""The gatekeeper: where a training is cut, for a checkpoint or to stop; the same in every process.

Every process plans the run for itself, so all must cut it at the same subnets. The process of stage 0 decides, by its
clock and by whether it was asked to stop, and tells the others through a store; they wait for its word. That cannot
become a circle: a process asks when it plans, which it does a fixed number of actions ahead of what it runs, but never
beyond a cut before it has passed that; and all plan the same actions in one order, so the decider has always planned as
far as those that it waits for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from torch.distributed.distributed_c10d import Store

from naspipe.config.schema import CheckpointConfig
from naspipe.pipeline.contract import Contract
from naspipe.pipeline.gate import Passage

GRANULE = 16
"""Bulks between two looks at the clock, and at whether to stop."""


class Gatekeeper:
    """Says of each subnet whether all before it must be updated first."""

    def __init__(
        self,
        settings: CheckpointConfig,
        contract: Contract,
        must_stop: Callable[[], bool] = lambda: False,
        store: Store | None = None,
        decides: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with no cut.

        Args:
            settings: When to write a checkpoint.
            contract: Of *flush*, cuts are at multiples of the bulk; of *stale*, there are none.
            must_stop: Asked by the one who decides.
            store: By which several processes agree; None: there is one.
            decides: Whether this process decides.
            clock: Gives seconds.
        """
        self._settings = settings
        self._bulk = contract.bound if contract.kind == "flush" else 1
        self._never = contract.kind == "stale"
        self._must_stop = must_stop
        self._store = store
        self._decides = decides
        self._clock = clock
        self._last = clock()
        # Subnets between two cuts by their number.
        self._every = None if settings.every is None else math.ceil(settings.every / self._bulk) * self._bulk
        self.cuts: set[int] = set()
        self.ended: int | None = None

    def __call__(self, subnet: int) -> Passage:
        """Say whether a subnet may be admitted; called once for each, in order."""
        if self._never or not self._is_place(subnet):
            return Passage.OPEN
        if self._store is None:
            passage = self._decide(subnet)
        elif self._decides:
            passage = self._decide(subnet)
            self._store.set(f"naspipe/gate/{subnet}", passage.name)
        else:
            passage = Passage[self._store.get(f"naspipe/gate/{subnet}").decode()]
        if passage is not Passage.OPEN:
            self.cuts.add(subnet)
        if passage is Passage.END:
            self.ended = subnet
        return passage

    def _is_place(self, subnet: int) -> bool:
        return subnet % (GRANULE * self._bulk) == 0 or self._is_due(subnet)

    def _is_due(self, subnet: int) -> bool:
        return self._every is not None and subnet % self._every == 0

    def _decide(self, subnet: int) -> Passage:
        if self._must_stop():
            return Passage.END
        minutes = self._settings.minutes
        late = minutes is not None and self._clock() - self._last >= 60 * minutes
        if not late and not self._is_due(subnet):
            return Passage.OPEN
        self._last = self._clock()
        return Passage.DRAINED
