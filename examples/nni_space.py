"""A model space of NNI for small grey images; `naspipe run examples/nni.yaml` searches it."""

from __future__ import annotations

from nni.nas.nn.pytorch import LayerChoice, ModelSpace, Repeat
from torch import Tensor, nn


def conv(width: int, kernel: int, groups: int = 1) -> nn.Module:
    """Return a convolution with normalisation and activation."""
    return nn.Sequential(
        nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    )


class Residual(nn.Module):
    """A module, added to its input."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return x + self.module(x)


class SmallSpace(ModelSpace):
    """Two to five residual steps, each with a choice among four operations."""

    def __init__(self, width: int = 16, classes: int = 10, stride: int = 1):
        super().__init__()
        self.width = width
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, stride, padding=1, bias=False), nn.BatchNorm2d(width))
        self.steps = Repeat(self.step, (2, 5), label="depth")
        self.head = nn.Sequential(
            nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, classes)
        )

    def step(self, index: int) -> nn.Module:
        width = self.width
        candidates = {
            "conv1": conv(width, 1),
            "conv3": conv(width, 3),
            "depthwise": conv(width, 3, groups=width),
            "skip": nn.Identity(),
        }
        return Residual(LayerChoice(candidates, label=f"step{index}"))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.steps(self.stem(x)))
