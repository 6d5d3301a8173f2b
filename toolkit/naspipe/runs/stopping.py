"""Stopping on request: SIGTERM, by which schedulers announce that they will end a job."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from naspipe.errors import StoppedError


@contextlib.contextmanager
def on_sigterm(act: Callable[[], None]) -> Iterator[None]:
    """Call a function if SIGTERM comes in this context; outside the main thread this has no effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        act()

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Sigterm(BaseException):  # not an Exception, like KeyboardInterrupt
    """SIGTERM came; no handler of errors may catch it."""


@contextlib.contextmanager
def stopped_by_sigterm(how_to_resume: str) -> Iterator[None]:
    """Raise an error at once if SIGTERM comes in this context; a phase is resumed from its log.

    Args:
        how_to_resume: A sentence for the message.

    Raises:
        StoppedError: SIGTERM came.
    """

    def stop() -> None:
        raise _Sigterm

    try:
        with on_sigterm(stop):
            yield
    except _Sigterm:
        raise StoppedError(f"stopped by SIGTERM. {how_to_resume}") from None


class StopRequest:
    """A file that asks a training to stop; it is made when SIGTERM comes.

    Attributes:
        came: Whether SIGTERM came within ``heard``; known afterwards.
    """

    def __init__(self, path: Path) -> None:
        """Use a path; ``heard`` removes the file of an earlier training."""
        self._path = path
        self.came = False

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Make the file if SIGTERM comes in this context; it is removed at the beginning and at the end."""
        self._path.unlink(missing_ok=True)
        try:
            with on_sigterm(self._path.touch):
                yield
        finally:
            self.came = self.is_made()
            self._path.unlink(missing_ok=True)

    def is_made(self) -> bool:
        """Tell whether the file exists."""
        return self._path.exists()
