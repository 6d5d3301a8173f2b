"""Architectures: one option for every decision that exists."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from naspipe.errors import ArchitectureError
from naspipe.space.decision import Option, as_option
from naspipe.wording import listing, nearest


class Architecture(Mapping[str, Option]):
    """An immutable, hashable assignment of an option to every decision that exists.

    A search space makes it (by ``space.architecture``, by ``space.parse``, or through a sampler) and has then checked
    it. One that is made by hand is only a mapping until ``space.architecture`` has checked it. Two architectures are
    equal if they make the same choices in the same order of decisions.
    """

    __slots__ = ("_decisions", "_hash", "_lookup", "_options")

    _decisions: tuple[str, ...]
    _options: tuple[Option, ...]
    _lookup: dict[str, Option] | None
    _hash: int | None

    def __init__(self, choices: Mapping[str, Option]) -> None:
        """Copy ``choices``, in its order."""
        self._set(tuple(choices), tuple(as_option(option) for option in choices.values()))

    def _set(self, decisions: tuple[str, ...], options: tuple[Option, ...]) -> None:
        object.__setattr__(self, "_decisions", decisions)
        object.__setattr__(self, "_options", options)
        object.__setattr__(self, "_lookup", None)
        object.__setattr__(self, "_hash", None)

    @classmethod
    def unchecked(cls, decisions: tuple[str, ...], options: tuple[Option, ...]) -> Architecture:
        """Make an architecture of aligned tuples, without a check; for samplers, which draw many."""
        architecture = cls.__new__(cls)
        architecture._set(decisions, options)
        return architecture

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("an architecture is immutable; make another with space.architecture")

    def __reduce__(self) -> tuple[Any, ...]:
        return Architecture.unchecked, (self._decisions, self._options)

    def __getitem__(self, decision: str) -> Option:
        lookup = self._lookup
        if lookup is None:
            lookup = dict(zip(self._decisions, self._options, strict=True))
            object.__setattr__(self, "_lookup", lookup)
        if decision not in lookup:
            raise ArchitectureError(
                f"the architecture has no decision {decision!r}.{nearest(decision, self)} It has {listing(self)}."
            )
        return lookup[decision]

    def __contains__(self, decision: object) -> bool:
        return decision in self._decisions

    @property
    def options(self) -> tuple[Option, ...]:
        """The chosen options, in the order of decisions."""
        return self._options

    def get(self, decision: str, default: Any = None) -> Any:
        """Return the option chosen for ``decision``, or ``default`` where it does not exist."""
        # The method of Mapping expects a KeyError.
        return self[decision] if decision in self else default  # noqa: SIM401

    def __iter__(self) -> Iterator[str]:
        return iter(self._decisions)

    def __len__(self) -> int:
        return len(self._decisions)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Architecture):
            return NotImplemented
        return self._options == other._options and self._decisions == other._decisions

    def __hash__(self) -> int:
        value = self._hash
        if value is None:
            value = hash((self._decisions, self._options))
            object.__setattr__(self, "_hash", value)
        return value

    def __repr__(self) -> str:
        return f"Architecture({dict(self)!r})"

    def to_json(self) -> str:
        """Return the canonical JSON: compact, in the order of decisions."""
        return json.dumps(dict(self), separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Architecture:
        """Read the JSON that ``to_json`` returns; arrays become tuples.

        Raises:
            ArchitectureError: It is not a JSON object.
        """
        try:
            choices = json.loads(text)
        except json.JSONDecodeError as error:
            raise ArchitectureError(f"an architecture must be JSON, but {error}: {text!r}.") from error
        if not isinstance(choices, dict):
            raise ArchitectureError(f"an architecture must be a JSON object, but got {text!r}.")
        return cls(choices)
