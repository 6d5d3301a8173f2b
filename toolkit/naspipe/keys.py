"""Keyed randomness: integers and texts name every random draw, and earlier draws do not matter.

A draw that is keyed by (seed, purpose, index, ...) is the same in any order, on any device, and after any interruption.
"""

from __future__ import annotations

import hashlib
import random


def derive_key(seed: int, *parts: int | str) -> int:
    """Return the 63-bit key of one named draw.

    Args:
        seed: The run's seed.
        parts: The purpose of the draw, for example ``"train", subnet, microbatch, block``.

    Returns:
        An integer in [0, 2**63), uniform over the possible inputs; the same on every platform.
    """
    text = repr((seed, *parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def keyed_random(seed: int, *parts: int | str) -> random.Random:
    """Return a new Mersenne Twister for one named draw.

    Python promises to keep the stream of its method ``random()`` only. Use ``draw_index`` and ``draw_permutation`` for
    integers and orders.
    """
    return random.Random(derive_key(seed, *parts))


def draw_index(generator: random.Random, count: int) -> int:
    """Draw an integer in [0, count); the bias is below count / 2**53."""
    return int(generator.random() * count)


def draw_permutation(generator: random.Random, count: int) -> list[int]:
    """Draw a permutation of range(count) by Fisher and Yates' shuffle (Durstenfeld, 1964)."""
    order = list(range(count))
    for last in range(count - 1, 0, -1):
        other = draw_index(generator, last + 1)
        order[last], order[other] = order[other], order[last]
    return order
