"""The space and the task that benchmarks/speed.py trains: 16 equal blocks of 8 candidates."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from naspipe import (
    Architecture,
    ChoiceBlock,
    ClassificationTask,
    Decision,
    Sampler,
    SearchSpace,
    Splits,
    TensorDataset,
)

WIDTH = 256


class SpeedSpace(SearchSpace):
    """Sixteen residual blocks of eight equal candidates, without stem and with a small head."""

    def __init__(self) -> None:
        super().__init__(Decision(f"block{block}", range(8)) for block in range(16))

    def blocks(self) -> Iterator[nn.Module]:
        """Yield the blocks, the head within the last."""
        for decision in self.decisions[:-1]:
            yield ChoiceBlock(decision, {option: Candidate() for option in decision.options})
        last = self.decisions[-1]
        yield ChoiceBlock(last, {o: nn.Sequential(Candidate(), nn.Linear(WIDTH, 10)) for o in last.options})


class FixedSampler(Sampler):
    """Draws one architecture for ever."""

    def start(self, space: SearchSpace, seed: int) -> None:
        """Choose it."""
        self._architecture = space.from_indices([0] * len(space.decisions))

    def draw(self, index: int) -> Architecture:
        """Return it."""
        return self._architecture


class Candidate(nn.Module):
    """A two-layer perceptron with a residual connection; (N, WIDTH) in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        out: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return out


class Noise(ClassificationTask):
    """Random vectors of ten classes."""

    def load(self, seed: int) -> Splits:
        """Return 4,096 training samples."""
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(4352, WIDTH, generator=generator)
        targets = torch.randint(10, (4352,), generator=generator)
        splits = [TensorDataset(inputs[a:b], targets[a:b]) for a, b in ((0, 4096), (4096, 4224), (4224, 4352))]
        return Splits(*splits)
