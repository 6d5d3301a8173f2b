"""Calls of plug-ins: their errors become errors that name the call."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from naspipe.errors import NaspipeError, RunError

# Packages whose frames are left out of a traceback where they come before the plug-in's own.
_OURS = {"naspipe", "typer", "click", "importlib", "contextlib", "functools", "torch", "pydantic"}


@contextmanager
def calling(what: str, failure: type[NaspipeError]) -> Iterator[None]:
    """Turn any error of a plug-in into ``failure``.

    An ``InputError`` has the plug-in's traceback in its text. A ``RunError`` names only the exception; the traceback of
    its cause begins with the plug-in's first frame.

    Args:
        what: The call, for example ``MyTask.loss``.
        failure: The type of the error to raise; an error of this type passes unchanged.
    """
    try:
        yield
    except failure:
        raise
    except Exception as error:
        users = _users(error.__traceback__)
        if users is not None:
            error.__traceback__ = users
        if isinstance(error, NaspipeError):
            raise failure(f"{what} failed: {error}") from error
        if issubclass(failure, RunError):
            raise failure(f"{what} failed: {type(error).__name__}: {error}") from error
        raise failure(f"{what} failed:\n{user_traceback(error)}") from error


def user_traceback(error: BaseException) -> str:
    """Return an exception as Python shows it, from the plug-in's first frame on."""
    users = _users(error.__traceback__)
    summary = traceback.TracebackException(type(error), error, users)
    return "".join(summary.format() if users else summary.format_exception_only()).rstrip()


def user_place(error: BaseException) -> str:
    """Return file and line of a plug-in's last frame as the beginning of a sentence, or an empty text."""
    frames = [
        frame for frame in traceback.extract_tb(_users(error.__traceback__)) if not frame.filename.startswith("<frozen")
    ]
    return f"{frames[-1].filename}, line {frames[-1].lineno}: " if frames else ""


def _users(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] in _OURS:
        trace = trace.tb_next
    return trace
