"""Stopping on request: SIGTERM, by which schedulers announce that a job must go."""

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
    """Call a function when SIGTERM comes meanwhile; does nothing in other threads than the main one."""
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


class _Sigterm(BaseException):  # no error, as KeyboardInterrupt is none
    """SIGTERM came; no handler of errors may take it for a failure of what it interrupts."""


@contextlib.contextmanager
def stopped_by_sigterm(how_to_go_on: str) -> Iterator[None]:
    """Raise an error where SIGTERM finds the program: what was logged so far is all that a phase goes on from.

    Raises:
        StoppedError: SIGTERM came.
    """

    def stop() -> None:
        raise _Sigterm

    try:
        with on_sigterm(stop):
            yield
    except _Sigterm:
        raise StoppedError(f"stopped by SIGTERM. {how_to_go_on}") from None


class StopRequest:
    """A file by which whoever hears SIGTERM tells the process that decides where training is cut.

    Attributes:
        came: Whether SIGTERM came while it was listened for; known afterwards.
    """

    def __init__(self, path: Path) -> None:
        """Use a path; what an earlier training has left there is taken away by ``heard``."""
        self._path = path
        self.came = False

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Make the file when SIGTERM comes; there is none at the beginning nor afterwards."""
        self._path.unlink(missing_ok=True)
        try:
            with on_sigterm(self._path.touch):
                yield
        finally:
            self.came = self.is_made()
            self._path.unlink(missing_ok=True)

    def is_made(self) -> bool:
        """Tell whether it has been made."""
        return self._path.exists()
