"""Contracts: what a plan promises about the versions of the layers that subnets read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from naspipe.errors import InputError

_TEXT = re.compile(r"causal|(flush)\(([1-9][0-9]*)\)|(stale)\((0|[1-9][0-9]*)\)")


@dataclass(frozen=True)
class Contract:
    """The promise of a plan about reads and updates; text ``causal``, ``flush(4)``, ``stale(7)``.

    - *causal*: a subnet reads a strict layer after the updates of all earlier subnets that use it.
    - *flush(bulk)*: the subnets of a bulk read the weights at its start and update them at its end.
    - *stale(k)*: a read misses at most the updates of the last k subnets.

    Attributes:
        kind: Its name.
        bound: The bulk of *flush*, the k of *stale*; 0 for *causal*.
    """

    kind: Literal["causal", "flush", "stale"]
    bound: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "causal" else f"{self.kind}({self.bound})"

    @classmethod
    def parse(cls, text: str) -> Contract:
        """Return the contract of a text; the whole text must match.

        Raises:
            InputError: The text is not that of a contract.
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            raise InputError(f"a contract must read like causal, flush(4) or stale(7), but got {text!r}.")
        if match[1]:
            return cls("flush", int(match[2]))
        if match[3]:
            return cls("stale", int(match[4]))
        return cls("causal")

    def horizon(self, subnet: int) -> int:
        """Return h: a subnet's reads must hold the updates of every subnet below h."""
        if self.kind == "flush":
            return subnet - subnet % self.bound
        return subnet - self.bound

    def read_limit(self, subnet: int) -> int:
        """Return l: a subnet's reads must hold no update of subnet l or a later one."""
        return subnet if self.kind == "stale" else self.horizon(subnet)

    @property
    def orders_layers(self) -> bool:
        """Whether subnets wait for each other layer by layer; otherwise each part waits for all below the horizon."""
        return self.kind == "causal"

    @property
    def allows_smaller_window(self) -> bool:
        """Whether fewer subnets than the executor's own window may be in flight."""
        return self.kind == "causal"

    @property
    def bulk(self) -> int:
        """Number of subnets that read the same weights and are updated together; 1 unless the contract is *flush*."""
        return self.bound if self.kind == "flush" else 1

    @property
    def can_drain(self) -> bool:
        """Whether a drain changes no version that is read; only then can checkpoints be written."""
        return self.kind != "stale"

    @property
    def equal_runs(self) -> str:
        """The runs with the same bits: ``sequential``, the contract's own text, or an empty text for none."""
        if self.allows_delay:
            return "sequential"
        return str(self) if self.can_drain else ""

    @property
    def allows_delay(self) -> bool:
        """Whether always-active layers may be read a fixed delay late."""
        return self.kind == "causal" or (self.kind == "flush" and self.bound == 1)


CAUSAL = Contract("causal")
