"""The types of the spaces' parameters."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

PositiveInt = Annotated[int, Field(ge=1)]

Chance = Annotated[float, Field(ge=0, lt=1)]
"""Of dropout."""

TwoOrMore = Annotated[int, Field(ge=2)]
"""Of classes, and of words: the padding and one more."""

Count = Literal[24, 48, 72, 96]
"""How many candidates a block may have."""
