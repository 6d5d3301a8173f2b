"""Actions: what a stage does with a unit, and their text."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from naspipe.errors import InputError


class Kind(enum.Enum):
    """What is done: the forward or backward of a unit, or the update of a subnet."""

    FORWARD = "F"
    BACKWARD = "B"
    UPDATE = "U"


_TEXT = re.compile(r"(0|[1-9]\d*)([FBU])(0|[1-9]\d*)(?:\.([1-9]\d*))?", re.ASCII)


@dataclass(frozen=True)
class Action:
    """One step of one stage; text ``2F7``, ``2B7.1``, ``2U7``.

    Attributes:
        stage: Index of the stage.
        kind: What is done.
        subnet: Place of the subnet in the sequence.
        microbatch: Index of the micro-batch; the text leaves 0 out. Updates have none: it is 0.
    """

    stage: int
    kind: Kind
    subnet: int
    microbatch: int = 0

    def __str__(self) -> str:
        part = f".{self.microbatch}" if self.microbatch else ""
        return f"{self.stage}{self.kind.value}{self.subnet}{part}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Read an action's text, all of it.

        Raises:
            InputError: It is not the text of an action.
        """
        match = _TEXT.fullmatch(text)
        if match is None or (match[2] == "U" and match[4]):
            raise InputError(
                f"an action must read like 2F7, 2B7.1 or 2U7 (stage, kind, subnet, micro-batch if not 0), "
                f"but got {text!r}."
            )
        return cls(int(match[1]), Kind(match[2]), int(match[3]), int(match[4] or 0))
