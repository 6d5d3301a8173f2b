"""Partition: which stage, and which segment of it, runs which blocks.

A partition of n blocks into p parts is the tuple of its p + 1 cuts: part i runs the blocks from cut i up to,
not including, cut i + 1. No part is empty.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from naspipe.errors import InputError

Cuts = tuple[int, ...]


def balanced_cuts(costs: Sequence[int], parts: int) -> Cuts:
    """Cut blocks into contiguous parts such that the costliest part costs as little as possible.

    Among the best, the one that fills the parts from the front. Binary search over the largest cost, then a
    greedy fill; integers only, so every machine finds the same.

    Args:
        costs: Cost of each block, at least 0.
        parts: Number of parts.

    Raises:
        InputError: There are more parts than blocks.
    """
    _require_blocks(len(costs), parts)
    low, high = max(costs), sum(costs)
    while low < high:
        middle = (low + high) // 2
        if _fits(costs, parts, middle):
            high = middle
        else:
            low = middle + 1
    cuts = [0]
    filled = 0
    for block, cost in enumerate(costs):
        # A part ends where its next block would overfill it, or where every later part needs a block.
        rest = parts - len(cuts)
        if block > cuts[-1] and (filled + cost > low or len(costs) - block == rest) and rest:
            cuts.append(block)
            filled = 0
        filled += cost
    return (*cuts, len(costs))


def _fits(costs: Sequence[int], parts: int, limit: int) -> bool:
    used, filled = 1, 0
    for cost in costs:
        filled += cost
        if filled > limit:
            used, filled = used + 1, cost
    return used <= parts


def segment_cuts(costs: Sequence[int], cuts: Cuts, segments: int) -> Cuts:
    """Cut each stage of a partition further into balanced segments.

    Args:
        costs: Cost of each block.
        cuts: A partition into stages.
        segments: Segments of each stage.

    Raises:
        InputError: A stage has fewer blocks than segments.
    """
    if segments == 1:
        return cuts
    result = [0]
    for stage, (start, end) in enumerate(itertools.pairwise(cuts)):
        if end - start < segments:
            raise InputError(
                f"every segment must have a block, but stage {stage} has {end - start} blocks for {segments} "
                f"segments. Use at most {min(b - a for a, b in itertools.pairwise(cuts))} segments here, or "
                "fewer stages."
            )
        result += [start + cut for cut in balanced_cuts(costs[start:end], segments)[1:]]
    return tuple(result)


def explicit_cuts(sizes: Sequence[int], blocks: int, parts: int) -> Cuts:
    """Return the partition with the given numbers of blocks.

    Args:
        sizes: Blocks of each part.
        blocks: Number of blocks there are.
        parts: Number of parts there must be.

    Raises:
        InputError: A part is empty, or the numbers do not add up.
    """
    _require_blocks(blocks, parts)
    if len(sizes) != parts or sum(sizes) != blocks or min(sizes) < 1:
        raise InputError(
            f"an explicit partition must give each of the {parts} stages at least one of the {blocks} blocks "
            f"and all of them in all, but gives {list(sizes)!r} (sum {sum(sizes)})."
        )
    return (0, *itertools.accumulate(sizes))


def _require_blocks(blocks: int, parts: int) -> None:
    if parts > blocks:
        raise InputError(
            f"every stage must have a block, but there are {parts} stages for {blocks} blocks. "
            f"Use at most {blocks} stages."
        )
