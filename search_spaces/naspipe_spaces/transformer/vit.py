"""The space ``vit``: vision transformers.

Source: Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021; with the mean over patches instead of a class
token, since a convolution would mix such a token with its neighbours only.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from naspipe.errors import SpaceError
from naspipe.space import Decision, SearchSpace
from naspipe_spaces.transformer.candidates import Candidate, choose_candidates, require_width
from naspipe_spaces.transformer.ends import ImageHead, Patches
from naspipe_spaces.transformer.layers import CandidateBlock, SequenceLayer
from naspipe_spaces.transformer.parameters import Chance, Count, PositiveInt, TwoOrMore


class VisionTransformer(SearchSpace):
    """Vision transformers: patches of an image, and a chain of blocks, each a choice among 24 to 96 layers."""

    def __init__(
        self,
        blocks: PositiveInt = 6,
        candidates: Count = 24,
        width: PositiveInt = 64,
        image_size: PositiveInt = 8,
        patch_size: PositiveInt = 2,
        input_channels: PositiveInt = 1,
        classes: TwoOrMore = 10,
        dropout: Chance = 0.1,
    ) -> None:
        """Describe the space.

        Args:
            blocks: Number of blocks.
            candidates: Number of candidate layers of a block: 24, 48, 72 or 96.
            width: Channels between blocks, a multiple of 16.
            image_size: Height and width of the images, in pixels.
            patch_size: Height and width of a patch, a divisor of image_size.
            input_channels: Channels of the images.
            classes: Number of classes.
            dropout: Probability that an element of a patch, or of a layer's output before the sum, is dropped.

        Raises:
            SpaceError: ``width`` is not a multiple of 16, or ``patch_size`` does not divide ``image_size``.
        """
        require_width(width)
        if image_size % patch_size:
            sizes = ", ".join(str(size) for size in range(1, image_size + 1) if image_size % size == 0)
            raise SpaceError(
                f"patch_size must divide image_size, but is {patch_size}, and the images have {image_size} pixels a "
                f"side. Set it to one of {sizes}."
            )
        self.candidates = choose_candidates(candidates)
        self.width = width
        self.image_size = image_size
        self.patch_size = patch_size
        self.input_channels = input_channels
        self.classes = classes
        self.dropout = dropout
        options = [candidate.name for candidate in self.candidates]
        super().__init__(Decision(f"block{index}", options) for index in range(blocks))

    def blocks(self) -> Iterator[nn.Module]:
        """Yield patches, choice blocks and head; images (N, C, H, W) in, logits (N, classes) out."""
        yield Patches(self.input_channels, self.image_size, self.patch_size, self.width, self.dropout)
        for decision in self.decisions:
            yield CandidateBlock(decision, self.candidates, self._layer)
        yield ImageHead(self.width, self.classes)

    def _layer(self, candidate: Candidate) -> nn.Module:
        return SequenceLayer(candidate.operator(self.width, causal=False), self.width, self.dropout)
