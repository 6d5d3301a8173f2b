"""The drain schedule: before which subnets a training drains the pipeline, for a checkpoint or to stop.

Every process plans the run for itself, so all must drain before the same subnets. The process of stage 0 decides: by
its clock, and by whether it was asked to stop. It tells the others through a store, and they wait for its decision.

Processes cannot wait for each other in a circle. All plan the same actions in one order, each a fixed number of actions
ahead of those that it runs, and never beyond a drain that it has not passed. So stage 0 has always planned as far as
the processes that it waits for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from naspipe.config.schema import CheckpointConfig
from naspipe.pipeline.contract import Contract
from naspipe.pipeline.drain import Admission

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

INTERVAL = 16
"""Number of bulks between two checks of the clock and of the request to stop."""


class DrainSchedule:
    """Decides before which subnets the pipeline is drained.

    Attributes:
        drained: The subnets before which it is drained, as far as is decided.
    """

    def __init__(
        self,
        settings: CheckpointConfig,
        contract: Contract,
        must_stop: Callable[[], bool] = lambda: False,
        store: Store | None = None,
        decides: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without drains.

        Args:
            settings: When to write a checkpoint.
            contract: The contract, which allows drains at every subnet, between bulks, or not at all.
            must_stop: Tells whether the training is asked to stop; called in the process that decides.
            store: Carries decisions between processes; None if there is one process.
            decides: Whether this process decides.
            clock: Returns the time in seconds.
        """
        self._settings = settings
        self._bulk = contract.bulk
        self._possible = contract.can_drain
        self._must_stop = must_stop
        self._store = store
        self._decides = decides
        self._clock = clock
        self._last = clock()
        # Number of subnets between two checkpoints: a multiple of the bulk.
        self._every = None if settings.every is None else math.ceil(settings.every / self._bulk) * self._bulk
        self.drained: set[int] = set()

    def __call__(self, subnet: int) -> Admission:
        """Return when a subnet may be admitted; call it once for each subnet, in order."""
        if not self._possible or not self._is_place(subnet):
            return Admission.AT_ONCE
        if self._store is None:
            admission = self._decide(subnet)
        elif self._decides:
            admission = self._decide(subnet)
            self._store.set(f"naspipe/drain/{subnet}", admission.name)
        else:
            admission = Admission[self._store.get(f"naspipe/drain/{subnet}").decode()]
        if admission is not Admission.AT_ONCE:
            self.drained.add(subnet)
        return admission

    def is_drained(self, subnet: int) -> bool:
        """Tell whether the pipeline was drained before a subnet."""
        return subnet in self.drained

    def _is_place(self, subnet: int) -> bool:
        return subnet % (INTERVAL * self._bulk) == 0 or self._is_due(subnet)

    def _is_due(self, subnet: int) -> bool:
        return self._every is not None and subnet % self._every == 0

    def _decide(self, subnet: int) -> Admission:
        if self._must_stop():
            return Admission.NEVER
        minutes = self._settings.minutes
        late = minutes is not None and self._clock() - self._last >= 60 * minutes
        if not late and not self._is_due(subnet):
            return Admission.AT_ONCE
        self._last = self._clock()
        return Admission.DRAINED
