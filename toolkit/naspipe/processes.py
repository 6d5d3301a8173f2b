"""Starting processes in which Ctrl-C has no effect, so that only this process acts on it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def interrupts_kept_here() -> Iterator[None]:
    """Start processes within this context: SIGINT is blocked in them for good, and here until the context ends.

    A terminal sends an interrupt to every process of a job. Only this process shall act on it, and end the others.
    """
    # Python starts its resource tracker together with the first process, and unblocks SIGINT afterwards.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
