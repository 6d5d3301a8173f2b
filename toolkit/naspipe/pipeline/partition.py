"""Partition: which part runs which blocks.

A partition of n blocks into p parts is the tuple of its p + 1 cuts: part i runs the blocks from cuts[i] up to, but
not including, cuts[i + 1]. No part is empty.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence

from naspipe.errors import InputError

Cuts = tuple[int, ...]


def balanced_cuts(costs: Sequence[int], parts: int, least: int = 1) -> Cuts:
    """Cut blocks into contiguous parts such that the costliest part costs as little as possible.

    Of several such partitions it returns the one with the smallest sum of squared costs, then the one with the latest
    cuts. It uses dynamic programming on integers, so every machine finds the same partition. With ``least`` above 1,
    the costliest part may in rare cases cost a little more than necessary.

    Args:
        costs: Cost of each block, at least 0.
        parts: Number of parts.
        least: Least number of blocks of each part.

    Raises:
        InputError: There are too few blocks.
    """
    if parts * least > len(costs):
        needed = f"{least} blocks" if least > 1 else "a block"
        raise InputError(
            f"every stage must have {needed}, but there are {parts} stages for {len(costs)} blocks. "
            f"Use at most {len(costs) // least} stages."
        )
    below = [0, *itertools.accumulate(costs)]
    low, high = 0, below[-1]
    while low < high:
        middle = (low + high) // 2
        if _fits(below, parts, least, middle):
            high = middle
        else:
            low = middle + 1
    return _evenest(below, parts, least, low)


def _fits(below: Sequence[int], parts: int, least: int, limit: int) -> bool:
    """Tell whether a partition exists whose parts all cost at most ``limit``, by filling one part after another."""
    blocks = len(below) - 1
    end = 0
    for part in range(parts):
        most = blocks - (parts - part - 1) * least
        start, end = end, min(bisect_right(below, below[end] + limit) - 1, most)
        if end - start < least:
            return False
    return end == blocks


def _evenest(below: Sequence[int], parts: int, least: int, limit: int) -> Cuts:
    """Return the cuts with the smallest sum of squared costs among those whose parts all cost at most ``limit``."""
    blocks = len(below) - 1
    reached: dict[int, int] = {0: 0}
    starts: list[dict[int, int]] = []
    for part in range(parts):
        most = blocks - (parts - part - 1) * least
        squares: dict[int, int] = {}
        chosen: dict[int, int] = {}
        for start, square in reached.items():
            for end in range(start + least, most + 1):
                cost = below[end] - below[start]
                if cost > limit:
                    break
                total = square + cost * cost
                if end not in squares or total <= squares[end]:
                    squares[end], chosen[end] = total, start
        reached = squares
        starts.append(chosen)
    cuts = [blocks]
    for chosen in reversed(starts):
        cuts.append(chosen[cuts[-1]])
    return tuple(reversed(cuts))


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
        sizes: Number of blocks of each part.
        blocks: Number of all blocks.
        parts: Number of parts.

    Raises:
        InputError: A part is empty, or the sizes do not fit the numbers of parts and blocks.
    """
    if len(sizes) != parts or sum(sizes) != blocks or min(sizes) < 1:
        raise InputError(
            f"an explicit partition must give each of the {parts} stages at least one of the {blocks} blocks "
            f"and all of them in all, but gives {list(sizes)!r} (sum {sum(sizes)})."
        )
    return (0, *itertools.accumulate(sizes))
