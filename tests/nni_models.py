"""Model spaces of NNI's that the tests of the bridge use, on images (N, 1, 4, 4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nni
import torch
from nni.mutable import ExpressionConstraint
from nni.nas.nn.pytorch import (
    Cell,
    InputChoice,
    LayerChoice,
    ModelSpace,
    MutableBatchNorm2d,
    MutableConv2d,
    MutableLinear,
    Repeat,
)
from torch import Tensor, nn


def conv(width: int, kernel: int, groups: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=groups),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Dropout(0.1),
    )


def candidates(width: int) -> dict[str, nn.Module]:
    return {"conv1": conv(width, 1), "conv3": conv(width, 3), "grouped": conv(width, 3, 2), "skip": nn.Identity()}


class Head(nn.Module):
    def __init__(self, width: int, classes: int = 3) -> None:
        super().__init__()
        self.linear = MutableLinear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.mean((2, 3)))


class Chain(ModelSpace):
    """Residual choices in a row, with parametrised modules around them."""

    def __init__(self, depth: int = 3, width: int = 4) -> None:
        super().__init__()
        self.stem = MutableConv2d(1, width, 3, padding=1)
        self.norm = MutableBatchNorm2d(width)
        self.steps = nn.ModuleList(LayerChoice(candidates(width), label=f"step{i}") for i in range(depth))
        self.head = Head(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x))
        for step in self.steps:
            x = x + step(x)
        return self.head(x.view(x.size(0), x.size(1), 4, 4))


class Tied(ModelSpace):
    """Two choices by one label, of a list, which makes the options numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.first = LayerChoice([conv(4, 1), conv(4, 3)], label="both")
        self.second = LayerChoice([conv(4, 3), conv(4, 1)], label="both")
        self.head = Head(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(self.stem(x))))


class Deep(ModelSpace):
    """A depth to choose, choices within it, and one within a candidate."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.steps = Repeat(self.step, (1, 3), label="depth")
        self.head = Head(4)

    def step(self, index: int) -> nn.Module:
        inner = LayerChoice({"relu": nn.ReLU(), "conv": conv(4, 1)}, label=f"inner{index}")
        return LayerChoice({"plain": conv(4, 3), "nested": nn.Sequential(conv(4, 1), inner)}, label=f"step{index}")

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.steps(self.stem(x)))


class Inputs(ModelSpace):
    """Choices among inputs: one, two, or any number of them."""

    def __init__(self) -> None:
        super().__init__()
        self.stems = nn.ModuleList(nn.Conv2d(1, 4, 3, padding=1) for _ in range(3))
        self.one = InputChoice(3, 1, label="one")
        self.two = InputChoice(3, 2, reduction="mean", label="two")
        self.ends = LayerChoice({"conv1": conv(4, 1), "conv3": conv(4, 3)}, label="end")
        self.head = Head(4)

    def forward(self, x: Tensor) -> Tensor:
        stems = [stem(x) for stem in self.stems]
        return self.head(self.ends(self.one(stems) * self.two(stems)))


class Pairs(ModelSpace):
    """Cells with two predecessors, built from a factory as those of DARTS."""

    def __init__(self, cells: int = 3, merge_op: str = "all", factory: bool = True) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        made: dict[str, Any] = {"conv1": self.make(1), "conv3": self.make(3)}
        plain = {"conv1": conv(4, 1), "conv3": conv(4, 3)}
        self.cells = nn.ModuleList(
            Cell(made if factory else plain, 2, 1, 2, merge_op, preprocessor=Squeeze(), label="cell")
            for _ in range(cells)
        )
        self.head = Head(8)

    @staticmethod
    def make(kernel: int) -> Callable[[int, int, int | None], nn.Module]:
        return lambda node, operation, source: conv(4, kernel)

    def forward(self, x: Tensor) -> Tensor:
        before = now = self.stem(x)
        for cell in self.cells:
            before, now = now, cell([before, now])
        return self.head(now)


class Squeeze(nn.Module):
    """Halves the channels of what has eight."""

    def forward(self, inputs: list[Tensor]) -> list[Tensor]:
        return [x[:, ::2] if x.shape[1] == 8 else x for x in inputs]


class Widths(ModelSpace):
    """Superkernels: widths and kernels to choose."""

    def __init__(self) -> None:
        super().__init__()
        width = nni.choice("width", [4, 8])
        kernel = nni.choice("kernel", [1, 3])
        self.stem = MutableConv2d(1, width, kernel, padding=kernel // 2)
        self.norm = MutableBatchNorm2d(width)
        self.step = LayerChoice({"linear": MutableConv2d(width, 6, 1), "skip": MutableConv2d(width, 6, 3, padding=1)},
                                label="step")  # fmt: skip
        self.head = Head(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.step(self.norm(self.stem(x)).relu()))


class Shared(ModelSpace):
    """One convolution in two candidates, and one choice that is made twice."""

    def __init__(self) -> None:
        super().__init__()
        both = nn.Conv2d(4, 4, 3, padding=1)
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.first = LayerChoice({"a": both, "b": nn.Sequential(both, nn.ReLU(), nn.Conv2d(4, 4, 1))}, label="first")
        self.again = LayerChoice({"conv1": conv(4, 1), "conv3": conv(4, 3)}, label="again")
        self.last = LayerChoice({"conv1": conv(4, 1), "conv3": conv(4, 3)}, label="last")
        self.head = Head(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(self.again(self.again(self.first(self.stem(x))))))


class Branching(ModelSpace):
    """Asks for the value of a tensor, so that its forward cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.chain = Chain()

    def forward(self, x: Tensor) -> Tensor:
        return self.chain(x if x.sum() > -1e9 else -x)


class Opaque(nn.Module):
    """A module of choices whose forward cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.choice = LayerChoice(candidates(4), label="opaque")

    def forward(self, x: Tensor) -> Tensor:
        return self.choice(x) if x.shape[0] > 0 else x


class Noise(nn.Module):
    """Does something else in training, and draws for it."""

    def __init__(self) -> None:
        super().__init__()
        self.choice = LayerChoice(candidates(4), label="noisy")

    def forward(self, x: Tensor) -> Tensor:
        x = self.choice(x)
        return x + 0.1 * torch.randn_like(x) if self.training else x


class Moods(ModelSpace):
    """A chain with a module that cannot be traced, and one that depends on the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.parts = nn.Sequential(Opaque(), Noise(), LayerChoice(candidates(4), label="last"))
        self.head = Head(4)

    def forward(self, x: Tensor, scale: float | None = None) -> Tensor:
        x = self.head(self.parts(self.stem(x)))
        return x if scale is None else scale * x


class Ranges(ModelSpace):
    """A number between two others."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nni.nas.nn.pytorch.MutableDropout(nni.uniform("rate", 0.0, 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(x)


class Dangling(ModelSpace):
    """A choice that its own code makes."""

    def __init__(self) -> None:
        super().__init__()
        self.add_mutable(nni.choice("loose", [1, 2]))

    def forward(self, x: Tensor) -> Tensor:
        return x


class Constrained(Chain):
    """A rule: the first two steps must not be the same."""

    def __init__(self) -> None:
        super().__init__()
        first, second = self.steps[0].choice, self.steps[1].choice
        self.add_mutable(ExpressionConstraint(first != second, label="differ"))


class TwoInputs(Chain):
    """Its forward takes two values."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return super().forward(x + y)


class NoModel(nn.Module):
    """Not a model space."""
