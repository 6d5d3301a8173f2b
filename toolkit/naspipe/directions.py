"""Directions: which way a metric is better; without torch, for tasks and strategies alike."""

from __future__ import annotations

from typing import Literal

Direction = Literal["maximize", "minimize"]
