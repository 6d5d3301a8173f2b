"""Numbers that plug-ins give: read as Python's own."""

from __future__ import annotations


def as_number(value: object) -> int | float | None:
    """Return a number, a scalar of NumPy or a tensor of no dimensions as Python's own; else None."""
    if not isinstance(value, (int, float)) and getattr(value, "shape", None) == ():
        value = value.item()  # type: ignore[attr-defined]  # whatever has a shape of this kind has it
    if isinstance(value, bool):
        return None
    return int(value) if isinstance(value, int) else float(value) if isinstance(value, float) else None
