"""Actions: the steps of a stage, and their text."""

from __future__ import annotations

import enum
import re
from typing import NamedTuple

from naspipe.errors import InputError


class Kind(enum.IntEnum):
    """Kind of an action: the forward or backward of a unit, or the update of a subnet."""

    FORWARD = 0
    BACKWARD = 1
    UPDATE = 2

    @property
    def letter(self) -> str:
        """F, B or U."""
        return "FBU"[self]


_NUMBER = r"(0|[1-9][0-9]*)"
_INDEX = r"(?:\.([1-9][0-9]*))?"
_TEXT = re.compile(rf"{_NUMBER}{_INDEX}([FBU]){_NUMBER}{_INDEX}")


class Action(NamedTuple):
    """One step of one stage; text ``2F7``, ``2B7.1``, ``2U7``, with segments ``2.1F7``.

    Attributes:
        stage: Index of the stage.
        kind: Forward, backward or update.
        subnet: Place of the subnet in the sequence.
        microbatch: Index of the micro-batch, 0 for an update; the text leaves 0 out.
        segment: Index of the segment within the stage; the text leaves 0 out.
    """

    stage: int
    kind: Kind
    subnet: int
    microbatch: int = 0
    segment: int = 0

    def __str__(self) -> str:
        segment = f".{self.segment}" if self.segment else ""
        microbatch = f".{self.microbatch}" if self.microbatch else ""
        return f"{self.stage}{segment}{self.kind.letter}{self.subnet}{microbatch}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Return the action of a text; the whole text must match.

        Raises:
            InputError: The text is not that of an action.
        """
        match = _TEXT.fullmatch(text)
        if match is None or (match[3] == "U" and match[5]):
            raise InputError(
                "an action must read like 2F7, 2B7.1, 2U7 or 2.1F7 (stage, segment if not 0, kind, subnet, "
                f"micro-batch if not 0), but got {text!r}."
            )
        kind = Kind("FBU".index(match[3]))
        return cls(int(match[1]), kind, int(match[4]), int(match[5] or 0), int(match[2] or 0))


class PlannedAction(NamedTuple):
    """An action with its place in time.

    Attributes:
        action: The action.
        start: Tick at which it starts.
        end: Tick at which it has ended.
        first_block: First block it runs.
        end_block: One more than the last block it runs.
        message: Number of the message that carries its result to another stage, or None.
    """

    action: Action
    start: int
    end: int
    first_block: int
    end_block: int
    message: int | None
