"""Chain: a small space for the checks of executors in real trainings."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from naspipe.space import Decision, SearchSpace
from naspipe.supernet.block import ChoiceBlock

WIDTH = 6
"""Number of features of the input and between blocks."""


class Chain(SearchSpace):
    """Four choices between layers of different kinds, with an always-active stem and head."""

    def __init__(self) -> None:
        super().__init__(Decision(f"layer{i}", ("linear", "wide", "norm", "skip")) for i in range(4))

    def blocks(self) -> Iterator[nn.Module]:
        """Yield stem, choice blocks and head."""
        yield nn.Linear(WIDTH, WIDTH)
        for decision in self.decisions:
            yield ChoiceBlock(
                decision,
                {
                    "linear": nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1)),
                    "wide": nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.ReLU(), nn.Linear(3 * WIDTH, WIDTH)),
                    "norm": nn.LayerNorm(WIDTH),
                    "skip": nn.Identity(),
                },
            )
        yield nn.Linear(WIDTH, 1)
