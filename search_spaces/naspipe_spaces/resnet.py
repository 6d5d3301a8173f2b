"""The space resnet: a chain of residual blocks, each with a choice of its form, kernel and more, or the identity."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from naspipe.errors import ArchitectureError, SpaceError
from naspipe.space import Architecture, Decision, SearchSpace
from naspipe.supernet import ChoiceBlock
from naspipe_spaces.residual import CATALOGUE, IDENTITY, Candidate, Residual

BLOCKS, CANDIDATES = 6, 10
"""The default numbers of blocks and candidates."""

PRESETS = {"cv.c1": (32, 48), "cv.c2": (32, 24), "cv.c3": (32, 12)}
"""Numbers of blocks and candidates of the vision spaces of Zhao et al., "NASPipe", ASPLOS 2022."""

SEPARATOR = "/"

PositiveInt = Annotated[int, Field(ge=1)]


class ResNet(SearchSpace):
    """Residual blocks that differ in form, kernel, expansion, dilation and squeeze and excitation."""

    def __init__(
        self,
        preset: Literal["cv.c1", "cv.c2", "cv.c3"] | None = None,
        blocks: PositiveInt | None = None,
        candidates: Annotated[int, Field(ge=2)] | list[str] | None = None,
        width: PositiveInt = 16,
        levels: PositiveInt = 3,
        stem_stride: Literal[1, 2, 4] = 1,
        classes: Annotated[int, Field(ge=2)] = 10,
        input_channels: PositiveInt = 1,
    ) -> None:
        """Describe the space.

        Args:
            preset: 32 blocks with 48 (cv.c1), 24 (cv.c2) or 12 (cv.c3) candidates each.
            blocks: Number of residual blocks; 6 by default.
            candidates: Number of candidates of a block (10 by default, including identity if the block keeps all
                shapes), or a list of their names, such as basic_k3, bottleneck_k5_e4_se, inverted_k7_e6_d2, identity.
            width: Channels of the first level, a multiple of 4; each later level has twice as many.
            levels: Number of levels, over which the blocks are distributed; the first block of each later level halves
                height and width.
            stem_stride: The stem's divisor of height and width; 2 or 4 for larger images.
            classes: Number of classes.
            input_channels: Channels of the images.

        Raises:
            SpaceError: Two parameters do not fit each other, or a candidate is unknown.
        """
        if preset is not None and (blocks is not None or candidates is not None):
            raise SpaceError(
                f"preset fixes blocks and candidates, but preset = {preset!r} was given with blocks = {blocks} and "
                f"candidates = {candidates}. Remove these two, or the preset."
            )
        if preset is not None:
            blocks, candidates = PRESETS[preset]
        self.num_blocks = BLOCKS if blocks is None else blocks
        self.width, self.levels, self.stem_stride = width, levels, stem_stride
        self.classes, self.input_channels = classes, input_channels
        if levels > self.num_blocks:
            raise SpaceError(
                f"levels must be at most the number of blocks, but there are {levels} levels and {self.num_blocks} "
                "blocks. Choose fewer levels or more blocks."
            )
        if width % 4:
            raise SpaceError(f"width must be a multiple of 4, since bottlenecks divide it, but is {width}.")
        # Two lists of options, since a block that changes shapes cannot be the identity.
        self._keeping, self._changing = _options(CANDIDATES if candidates is None else candidates, width)
        super().__init__(
            Decision(f"block{index}", self._changing if self._changes(index) else self._keeping)
            for index in range(self.num_blocks)
        )

    def _level(self, index: int) -> int:
        return index * self.levels // self.num_blocks

    def _changes(self, index: int) -> bool:
        """Tell whether a block halves the resolution and doubles the channels."""
        return index > 0 and self._level(index) != self._level(index - 1)

    def blocks(self) -> Iterator[nn.Module]:
        """Yield stem, residual blocks and head."""
        yield _stem(self.input_channels, self.width, self.stem_stride)
        for index, decision in enumerate(self.decisions):
            channels = self.width * 2 ** self._level(index)
            stride = 2 if self._changes(index) else 1
            yield ChoiceBlock(
                decision,
                {option: _module(str(option), channels // stride, channels, stride) for option in decision.options},
            )
        channels = self.width * 2 ** (self.levels - 1)
        yield nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(channels, self.classes),
        )

    def format(self, architecture: Architecture) -> str:
        """Return the names of the candidates, such as ``basic_k3/identity/inverted_k5_e6``."""
        return SEPARATOR.join(str(architecture[decision.name]) for decision in self.decisions)

    def parse(self, text: str) -> Architecture:
        """Read the names of the candidates, or JSON.

        Raises:
            ArchitectureError: The text is malformed, or is not an architecture of this space.
        """
        if text.lstrip().startswith("{"):
            return super().parse(text)
        names = text.split(SEPARATOR)
        if len(names) != self.num_blocks:
            raise ArchitectureError(
                f"a text of this space must have {self.num_blocks} blocks, separated by {SEPARATOR!r}, but has "
                f"{len(names)}: {text!r}."
            )
        return self.architecture({d.name: name for d, name in zip(self.decisions, names, strict=True)})


def _options(candidates: int | list[str], width: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the options of blocks that keep shapes, and of those that change them.

    Raises:
        SpaceError: There are fewer candidates, or a name is unknown.
    """
    if isinstance(candidates, int):
        if candidates > len(CATALOGUE):
            raise SpaceError(
                f"candidates must be at most {len(CATALOGUE)}, but is {candidates}. For others, list their names."
            )
        return (IDENTITY, *CATALOGUE[: candidates - 1]), CATALOGUE[:candidates]
    parsed = [Candidate.parse(name) for name in candidates if name != IDENTITY]
    for candidate in parsed:
        if candidate.form == "bottleneck" and width % candidate.expansion:
            raise SpaceError(
                f"the expansion of a bottleneck must divide width, but {str(candidate)!r} does not divide {width}. "
                f"Choose a width that is a multiple of {candidate.expansion}."
            )
    changing = tuple(map(str, parsed))
    if not changing:
        raise SpaceError(
            f"candidates must name at least one with parameters, for the blocks that change shapes, but is "
            f"{candidates}. Such candidates are {', '.join(CATALOGUE[:3])}."
        )
    return tuple(candidates), changing


def _module(option: str, channels: int, out_channels: int, stride: int) -> nn.Module:
    if option == IDENTITY:
        return nn.Identity()
    return Residual(Candidate.parse(option), channels, out_channels, stride)


def _stem(channels: int, width: int, stride: int) -> nn.Sequential:
    """Return convolutions that divide height and width by ``stride``, with ReLU between them."""
    parts: list[nn.Module] = []
    for step in {1: (1,), 2: (2,), 4: (2, 2)}[stride]:
        parts += [nn.ReLU()] if parts else []
        parts += [nn.Conv2d(channels, width, 3, step, padding=1, bias=False), nn.BatchNorm2d(width)]
        channels = width
    return nn.Sequential(*parts)
