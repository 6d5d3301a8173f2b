"""Channels: the connections between neighbouring stages, one for each direction.

NCCL runs what is posted on one connection in order, whatever its tag. Within a channel, sends and receives are
posted in the plan's order on both sides; channels of their own keep a receive that was posted ahead from holding up
the other direction, or another neighbour.
"""

from __future__ import annotations

from datetime import timedelta

import torch
from torch import distributed

Channels = dict[tuple[int, int], distributed.ProcessGroup]
"""For every pair (source stage, target stage) of neighbours what their messages go through."""


def connect_stages(backend: str, stages: int, timeout: float) -> Channels:
    """Connect all neighbours; every process of the default group calls it.

    Args:
        backend: ``gloo`` or ``nccl``.
        stages: Pipeline stages; a stage's number is its rank.
        timeout: Seconds after which a wait fails.
    """
    pairs = [pair for left in range(stages - 1) for pair in ((left, left + 1), (left + 1, left))]
    channels: Channels = {}
    for pair in pairs:
        group = distributed.new_group(list(pair), timeout=timedelta(seconds=timeout), backend=backend)
        if distributed.get_rank() in pair:
            channels[pair] = group
    # NCCL connects when a pair first talks, and then both must be there: now, in one order, they are.
    greeting = torch.zeros(1, dtype=torch.uint8, device=message_device(backend))
    for (source, target), group in channels.items():
        if distributed.get_rank() == source:
            distributed.send(greeting, dst=target, group=group)
        else:
            distributed.recv(greeting, src=source, group=group)
    return channels


def message_device(backend: str) -> str:
    """Return where a backend takes messages from: gloo from the CPU, whatever device trains."""
    return "cuda" if backend == "nccl" else "cpu"
