"""The options of the residual space: their names, and the residual modules of these names.

Shapes: N samples, C channels, H x W pixels.

Sources: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016 (basic, bottleneck) and "Identity
Mappings in Deep Residual Networks", ECCV 2016 (no activation after the sum); Sandler et al., "MobileNetV2", CVPR
2018 (inverted); Hu et al., "Squeeze-and-Excitation Networks", CVPR 2018; Yu and Koltun, "Multi-Scale Context
Aggregation by Dilated Convolutions", ICLR 2016.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product

from torch import Tensor, nn
from torch.nn import functional as F

from naspipe.errors import SpaceError

IDENTITY = "identity"
"""Name of the candidate without parameters: the block returns its input."""

KERNELS = (3, 5, 7)
DILATIONS = (1, 2, 3)
EXPANSIONS = {"basic": (1, 2, 3, 4), "bottleneck": (2, 4, 8), "inverted": (2, 3, 4, 6, 8)}
"""The forms, and the expansions of each."""

SQUEEZE = 4
"""The factor by which squeeze and excitation reduces the channels."""


@dataclass(frozen=True)
class Candidate:
    """The description of a residual branch.

    Attributes:
        form: ``basic``: two convolutions. ``bottleneck``: 1 x 1, a convolution, 1 x 1, narrow in the middle.
            ``inverted``: 1 x 1, a depthwise convolution, 1 x 1, wide in the middle.
        kernel: Size of the convolutions that are not 1 x 1.
        expansion: Ratio of the wide to the narrow channels; in a bottleneck the ends are wide.
        dilation: Dilation of the convolutions that are not 1 x 1.
        squeeze: Whether the branch has squeeze and excitation.
    """

    form: str
    kernel: int
    expansion: int = 1
    dilation: int = 1
    squeeze: bool = False

    def __str__(self) -> str:
        parts = [self.form, f"k{self.kernel}"]
        if self.expansion > 1:
            parts.append(f"e{self.expansion}")
        if self.dilation > 1:
            parts.append(f"d{self.dilation}")
        return "_".join([*parts, "se"] if self.squeeze else parts)

    @classmethod
    def parse(cls, name: str) -> Candidate:
        """Read a candidate's name, such as ``bottleneck_k5_e4_se``.

        Raises:
            SpaceError: It is not a name of a candidate, or not the canonical one.
        """
        match = re.fullmatch(r"([a-z]+)_k(\d)(?:_e(\d))?(?:_d(\d))?(_se)?", name)
        if match:
            form, kernel, expansion, dilation, squeeze = match.groups()
            candidate = cls(form, int(kernel), int(expansion or 1), int(dilation or 1), bool(squeeze))
            # An explicit _e1 or _d1 would be a second name of the same candidate.
            if candidate._exists() and str(candidate) == name:
                return candidate
        forms = "; ".join(f"{form}, e of {_numbers(values)}" for form, values in EXPANSIONS.items())
        raise SpaceError(
            f"a candidate must be {IDENTITY!r} or read like bottleneck_k5_e4_d2_se (form, kernel, expansion, "
            f"dilation, squeeze and excitation), but got {name!r}. Forms: {forms}; k of {_numbers(KERNELS)}; d of "
            f"{_numbers(DILATIONS)}. Leave out what is 1, and _se where there is none."
        )

    def _exists(self) -> bool:
        return self.expansion in EXPANSIONS.get(self.form, ()) and self.kernel in KERNELS and self.dilation in DILATIONS


def _numbers(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))


def _catalogue() -> tuple[str, ...]:
    usual = {"basic": 1, "bottleneck": 4, "inverted": 6}
    other = {"bottleneck": 2, "inverted": 3}
    return tuple(
        str(Candidate(form, kernel, expansion, dilation, squeeze))
        for expansions, dilation in product((usual, other), (1, 2))
        for squeeze in (False, True)
        for kernel in KERNELS
        for form, expansion in expansions.items()
    )


CATALOGUE = _catalogue()
"""60 candidates; a space with n candidates has the first n. The nine plain ones come first, then the same with squeeze
and excitation, with dilation, and with both; then the other expansions likewise."""


class Residual(nn.Module):
    """``shortcut(x) + branch(x)``, with nothing after the sum; a branch of zeros gives the identity.

    The weights of the branch's last norm start at zero (Goyal et al., "Accurate, Large Minibatch SGD", 2017). So all
    candidates give the same output at first, and the blocks after them learn from one input instead of one for each.

    Shapes: (N, C, H, W) to (N, C', ceil(H / stride), ceil(W / stride)), down to 1 x 1.
    """

    def __init__(self, candidate: Candidate, channels: int, out_channels: int, stride: int) -> None:
        """Build branch and shortcut, with their own norms.

        Args:
            candidate: The description of the branch.
            channels: Channels of the input.
            out_channels: Channels of the output.
            stride: The divisor of height and width, 1 or 2.
        """
        super().__init__()
        self.branch = _branch(candidate, channels, out_channels, stride)
        self.shortcut = Shortcut(out_channels - channels) if stride == 2 else nn.Identity()
        last = [module for module in self.branch.modules() if isinstance(module, nn.BatchNorm2d)][-1]
        nn.init.zeros_(last.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Add branch and shortcut."""
        out: Tensor = self.shortcut(x) + self.branch(x)
        return out


class Shortcut(nn.Module):
    """Averages each 2 x 2 pixels and appends channels of zeros; no parameters, equal for all candidates.

    Shapes: (N, C, H, W) to (N, C + more, ceil(H / 2), ceil(W / 2)).
    """

    def __init__(self, more: int) -> None:
        super().__init__()
        self.more = more

    def forward(self, x: Tensor) -> Tensor:
        """Halve the map; at an odd edge the average is over fewer pixels."""
        return F.pad(F.avg_pool2d(x, 2, ceil_mode=True), (0, 0, 0, 0, 0, self.more))


class SqueezeExcitation(nn.Module):
    """Weights the channels by a function of their means over the map; (N, C, H, W) in and out."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weigh = nn.Sequential(
            nn.Linear(channels, max(1, channels // SQUEEZE)),
            nn.ReLU(),
            nn.Linear(max(1, channels // SQUEEZE), channels),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Multiply each channel by its weight."""
        out: Tensor = x * self.weigh(x.mean((2, 3)))[:, :, None, None]
        return out


def _branch(candidate: Candidate, channels: int, out_channels: int, stride: int) -> nn.Sequential:
    kernel, dilation = candidate.kernel, candidate.dilation
    squeeze: list[nn.Module] = []
    if candidate.form == "basic":
        middle = out_channels * candidate.expansion
        first = _conv(channels, middle, kernel, stride, dilation)
        parts = [nn.ReLU(), first, nn.ReLU(), _conv(middle, out_channels, kernel, 1, dilation)]
    elif candidate.form == "bottleneck":
        middle = out_channels // candidate.expansion
        inner = _conv(middle, middle, kernel, stride, dilation)
        parts = [nn.ReLU(), _conv(channels, middle, 1), nn.ReLU(), inner, nn.ReLU(), _conv(middle, out_channels, 1)]
    else:
        middle = channels * candidate.expansion
        inner = _conv(middle, middle, kernel, stride, dilation, groups=middle)
        if candidate.squeeze:
            squeeze = [SqueezeExcitation(middle)]
        # No ReLU at the narrow ends of the branch.
        return nn.Sequential(
            _conv(channels, middle, 1), nn.ReLU(), inner, nn.ReLU(), *squeeze, _conv(middle, out_channels, 1)
        )
    if candidate.squeeze:
        squeeze = [SqueezeExcitation(out_channels)]
    return nn.Sequential(*parts, *squeeze)


def _conv(
    channels: int, out_channels: int, kernel: int, stride: int = 1, dilation: int = 1, groups: int = 1
) -> nn.Sequential:
    # With this padding and stride 1, a map of any size keeps its size.
    padding = dilation * (kernel // 2)
    conv = nn.Conv2d(channels, out_channels, kernel, stride, padding, dilation, groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out_channels))
