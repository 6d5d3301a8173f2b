"""Abstract spaces: blocks of candidates without modules, for the study of schedules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from naspipe.errors import InputError, SpaceError
from naspipe.pipeline.subnet import SubnetShape, UsedLayer
from naspipe.space import Decision, SearchSpace
from naspipe.space.sampler import Sampler
from naspipe.wording import listing, nearest

PRESETS = {
    "nlp.c0": (48, 96),
    "nlp.c1": (48, 72),
    "nlp.c2": (48, 48),
    "nlp.c3": (48, 24),
    "cv.c1": (32, 48),
    "cv.c2": (32, 24),
    "cv.c3": (32, 12),
}
"""Blocks and candidates per block of the spaces of Zhao et al., "NASPipe", ASPLOS 2022."""


class AbstractSpace(SearchSpace):
    """A chain of blocks with the same number of candidates; each candidate has parameters and the same cost."""

    def __init__(self, blocks: int, options: int) -> None:
        """Create the space.

        Args:
            blocks: Number of blocks, at least 1.
            options: Candidates of each block, at least 1.
        """
        super().__init__(Decision(f"block{block}", range(options)) for block in range(blocks))

    def blocks(self) -> NoReturn:
        """Refuse: there are no modules.

        Raises:
            SpaceError: Always.
        """
        raise SpaceError("an abstract space has no modules: it can be planned for, not trained.")

    def subnets(
        self, make_sampler: Callable[[], Sampler], seed: int, ends_always_active: bool = False
    ) -> Iterator[SubnetShape]:
        """Yield the subnets that a sampler draws, with unit costs.

        Args:
            make_sampler: Makes a sampler that has not been started.
            seed: Decides the sequence.
            ends_always_active: Give the first and the last block an always-active layer.
        """
        count = len(self.decisions)
        options = range(max(len(decision.options) for decision in self.decisions))
        rows = [(UsedLayer(str(option), True),) for option in options]
        ends = [(*row, UsedLayer("always_active", False)) for row in rows]
        forward, backward, update = (1,) * count, (2,) * count, (0,) * count
        sampler = make_sampler()
        sampler.start(self, seed)
        index = 0
        while True:
            chosen = sampler.draw(index).options
            layers: Sequence[Sequence[UsedLayer]] = [rows[option] for option in chosen]  # type: ignore[index]
            if ends_always_active:
                layers = [ends[chosen[0]], *layers[1:-1], ends[chosen[-1]]]  # type: ignore[index]
            yield SubnetShape(layers, forward, backward, update)
            index += 1


def parse_space(text: str) -> AbstractSpace:
    """Return the abstract space of a text: BLOCKSxOPTIONS, or the name of a preset.

    Raises:
        InputError: The text is neither.
    """
    match = re.fullmatch(r"([1-9][0-9]*)x([1-9][0-9]*)", text)
    if match is not None:
        return AbstractSpace(int(match[1]), int(match[2]))
    if text not in PRESETS:
        raise InputError(
            f"a space must be BLOCKSxOPTIONS, such as 48x72, or a preset, but is {text!r}."
            f"{nearest(text, PRESETS)} Presets: {listing(PRESETS)}."
        )
    return AbstractSpace(*PRESETS[text])
