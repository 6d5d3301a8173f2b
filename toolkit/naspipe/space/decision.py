"""Decisions: the categorical choices that make up a search space."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from naspipe.errors import ArchitectureError, SpaceError
from naspipe.wording import listing

Option: TypeAlias = "str | int | float | bool | tuple[Option, ...] | None"
"""One value of a decision: a JSON scalar, or a tuple of options."""


def as_option(value: object) -> Option:
    """Return ``value`` as an option; lists, as JSON holds tuples, become tuples.

    Raises:
        SpaceError: It is neither a JSON scalar nor a nest of tuples of them.
    """
    if isinstance(value, (list, tuple)):
        return tuple(as_option(item) for item in value)
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise SpaceError(
        "an option must be a text, a number, true, false, None or a tuple of these, but got "
        f"{value!r} of type {type(value).__name__}. Make its name the option, and find the object by the name."
    )


def _as_options(values: object, what: str) -> tuple[Option, ...]:
    # A set has no order, and a text would be split into its letters.
    if isinstance(values, (str, bytes, set, frozenset)) or not isinstance(values, Iterable):
        raise SpaceError(f"{what} must be a list or a tuple, but got {values!r} of type {type(values).__name__}.")
    return tuple(as_option(option) for option in values)


def _read_when(name: str, when: object) -> tuple[str | None, tuple[Option, ...]]:
    """Return name and options of the parent."""
    if when is None:
        return None, ()
    if not isinstance(when, (tuple, list)) or len(when) != 2 or not isinstance(when[0], str):
        raise SpaceError(
            f"when= of decision {name!r} must be the name of another decision and a list of its options, as "
            f"in when=('kind', ['conv']), but got {when!r}."
        )
    what = f"when= of decision {name!r}: the options of {when[0]!r}"
    return when[0], _as_options(when[1], what)


@dataclass(frozen=True)
class Decision:
    """One named choice among options.

    Attributes:
        name: Unique within the space.
        options: At least one; no two may be equal (in Python, 1 equals True).
        parent: Name of the decision that this one depends on, or None: this one always exists.
        parent_options: The options of ``parent`` under which this decision exists.
    """

    name: str
    options: tuple[Option, ...]
    parent: str | None = None
    parent_options: tuple[Option, ...] = ()
    _indices: dict[Option, int] = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        name: str,
        options: Sequence[Option],
        *,
        when: tuple[str, Sequence[Option]] | None = None,
    ) -> None:
        """Describe a choice.

        Args:
            name: Unique within the space.
            options: The options, at least one.
            when: Name of the parent, and the options of it under which this decision exists.

        Raises:
            SpaceError: There is no name or no option, two options are equal, or the options are not a list.
        """
        if not name or not isinstance(name, str):
            raise SpaceError(f"a decision must have a text as its name, but got {name!r}.")
        values = _as_options(options, f"the options of decision {name!r}")
        if not values:
            raise SpaceError(f"decision {name!r} must have at least one option, but has none.")
        indices: dict[Option, int] = {}
        for index, value in enumerate(values):
            if value in indices:
                raise SpaceError(
                    f"the options of decision {name!r} must differ, but {value!r} equals {values[indices[value]]!r}."
                )
            indices[value] = index
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "options", values)
        parent, parent_options = _read_when(name, when)
        object.__setattr__(self, "parent", parent)
        object.__setattr__(self, "parent_options", parent_options)
        object.__setattr__(self, "_indices", indices)

    def index(self, option: object) -> int:
        """Return the index of an option.

        Raises:
            ArchitectureError: It is not an option of this decision.
        """
        index = self._indices.get(as_option(option))
        if index is None:
            raise ArchitectureError(
                f"decision {self.name!r} has no option {option!r}. "
                f"It offers {listing(repr(known) for known in self.options)}."
            )
        return index
