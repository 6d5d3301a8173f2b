"""Plug-ins that depend on the hash of a text; like any that need no torch, they do not import it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from naspipe.executors.csp import CSP
from naspipe.keys import keyed_random
from naspipe.search.strategy import Strategy
from naspipe.space import Architecture, SearchSpace
from naspipe.space.sampler import Sampler


class HashedSampler(Sampler):
    def start(self, space: SearchSpace, seed: int) -> None:
        self.space, self.seed = space, seed

    def draw(self, index: int) -> Architecture:
        return self.space.random_architecture(keyed_random(self.seed, "hashed", index, hash("hashed") % 1000))


class HashedStrategy(Strategy):
    def start(self, space: SearchSpace, directions: Sequence[str], seed: int) -> None:
        self.space, self.seed, self.asked = space, seed, 0

    def ask(self) -> list[Architecture]:
        self.asked += 1
        return [self.space.random_architecture(keyed_random(self.seed, "hashed", self.asked, hash("hashed") % 1000))]

    def tell(self, outcomes: Sequence[Any]) -> None:
        pass


class HashedExecutor(CSP):
    def choose(self, ready: Any, view: Any) -> Any:
        return min(ready, key=lambda action: hash(str(action)))
