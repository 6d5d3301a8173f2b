"""The types of the parameters of the transformer spaces."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

PositiveInt = Annotated[int, Field(ge=1)]

Chance = Annotated[float, Field(ge=0, lt=1)]
"""Probability of dropout."""

TwoOrMore = Annotated[int, Field(ge=2)]
"""Number of classes, or of words including the padding."""

Count = Literal[24, 48, 72, 96]
"""The possible numbers of candidates of a block."""
