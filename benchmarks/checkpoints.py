"""Measure what checkpoints cost: python benchmarks/checkpoints.py [repeats, 5 by default]. Minutes, 8 GB of memory.

A supernet of 1 GB, 16 blocks of 4 dense layers, trained by SGD with momentum on one stage in one process and on two
stages in two, with a checkpoint every 8 of 24 subnets and without any, taken in turn; median and range. What a
checkpoint costs is the time from the first action to the last with two checkpoints, less the time without, halved; and
of it, what the pipeline loses by being drained, which the plan tells. Then the resident memory while 5,000 subnets of a
small space are trained with a checkpoint every 100. One thread a process.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from naspipe import ChoiceBlock, Decision, SearchSpace
from naspipe.training import session
from naspipe.training.checkpoint import CheckpointFolder
from naspipe.training.context import RunContext
from naspipe.training.files import TrainingFiles
from naspipe.training.supernet_training import train_supernet

HERE = Path(__file__).resolve()
REPEATS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
SUBNETS, EVERY = 24, 8
DRAINS = range(EVERY, SUBNETS, EVERY)


class DenseSpace(SearchSpace):
    """Blocks of four dense layers of one width."""

    def __init__(self, width: int = 2048, blocks: int = 16) -> None:
        self.width = width
        super().__init__(Decision(f"layer{block}", range(4)) for block in range(blocks))

    def blocks(self) -> Iterator[nn.Module]:
        """Yield the blocks, the head within the last."""
        width = self.width
        first, *rest = self.decisions
        yield nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, width))
        for decision in (first, *rest):
            yield ChoiceBlock(
                decision, {o: nn.Sequential(nn.Linear(width, width), nn.ReLU()) for o in decision.options}
            )
        yield nn.Linear(width, 10)


class Measured(NamedTuple):
    """What one training took.

    Attributes:
        seconds: From its first action to its last.
        writing: Seconds in which the first process wrote and finished the last checkpoint; 0 if unknown.
        size: Bytes of a checkpoint on the disk.
    """

    seconds: float
    writing: float
    size: int


def configure(executor: dict[str, Any], subnets: int, every: int | None, **space: int) -> RunContext:
    """Return one training."""
    return RunContext.load(
        {
            "space": {"name": f"{HERE}:DenseSpace", **space},
            "task": {"name": "synthetic", "shape": [3, 8, 8], "samples": 256},
            "training": {
                "subnets": subnets, "batch_size": 16, "delay": 8,
                "optimizer": {"name": "SGD", "lr": 0.001, "momentum": 0.9},
            },
            "sampler": {"name": "spaced", "distance": 2},
            "executor": {**executor, "checkpoint": {"every": every}},
            "search": {"strategy": {"name": "random"}},
        }
    )  # fmt: skip


class Timed(CheckpointFolder):
    """Notes how long the last checkpoint took to write."""

    last = 0.0
    started = 0.0

    def write_shard(self, *arguments: Any) -> None:
        """Note when it starts."""
        Timed.started = time.perf_counter()
        super().write_shard(*arguments)

    def finish(self, *arguments: Any) -> None:
        """Note how long both took."""
        super().finish(*arguments)
        Timed.last = time.perf_counter() - Timed.started


def one_process(every: int | None, subnets: int = SUBNETS, record: bool = True, **space: int) -> Measured:
    """Train on one stage in this process."""
    session.CheckpointFolder = Timed  # by this name the session opens it
    Timed.last = 0.0
    return _train({"name": "csp", "stages": 1}, every, subnets, record, **space)._replace(writing=Timed.last)


def two_processes(every: int | None, subnets: int = SUBNETS, record: bool = True, **space: int) -> Measured:
    """Train on two stages, each in a process of its own."""
    return _train({"name": "csp", "stages": 2, "transport": "distributed"}, every, subnets, record, **space)


def _train(executor: dict[str, Any], every: int | None, subnets: int, record: bool, **space: int) -> Measured:
    context = configure(executor, subnets, every, **space)
    with tempfile.TemporaryDirectory() as folder:
        files = TrainingFiles(Path(folder))
        actions = train_supernet(context, files, record=record).actions
        return Measured(_span(actions), 0.0, _size(CheckpointFolder(files.checkpoints)))


def _span(rows: list[Any]) -> float:
    return float(max(row[2] for row in rows) - min(row[1] for row in rows)) / 1e6 if rows else 0.0


def _size(checkpoints: CheckpointFolder) -> int:
    return sum(
        file.stat().st_size
        for index in checkpoints.indices()[:1]
        for file in (checkpoints.root / f"{index:09d}").iterdir()
    )


def drained() -> float:
    """Return by which share of its length the plan of two stages grows with one checkpoint."""
    planning = configure({"name": "csp", "stages": 2}, SUBNETS, None).planning
    plain, drained = planning.plan().makespan, planning.plan(drained=DRAINS).makespan
    return (drained - plain) / plain / len(DRAINS)


def show(name: str, values: list[float]) -> float:
    """Print median and range; return the median."""
    median = statistics.median(values)
    print(f"  {name:<44} {median:7.2f} s, {min(values):.2f} to {max(values):.2f}", flush=True)
    return median


def resident(pid: int) -> float:
    """Return the resident memory of a process, in MiB."""
    try:
        return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) / 2**10
    except (OSError, IndexError):
        return 0.0  # It has ended.


def flat(name: str, train: Callable[..., Measured], processes: Callable[[], Sequence[int]]) -> None:
    """Print the resident memory of some processes over 5,000 subnets with 49 checkpoints; nothing is recorded."""
    samples: list[float] = []
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.2):
            samples.append(sum(resident(pid) for pid in processes()))

    thread = threading.Thread(target=look)
    thread.start()
    train(100, 5000, False, width=64, blocks=4)
    done.set()
    thread.join()
    tenths = [samples[place * (len(samples) - 1) // 10] for place in range(11)]
    print(f"memory of {name} over 5,000 subnets, a checkpoint every 100, at each tenth of the time:")
    print("  " + ", ".join(f"{mebibytes:.0f}" for mebibytes in tenths) + " MiB", flush=True)


def main() -> None:
    """Print all figures."""
    torch.set_num_threads(1)
    flat("one process", one_process, lambda: [os.getpid()])
    flat("two processes", two_processes, lambda: [child.pid or 0 for child in multiprocessing.active_children()])
    share = drained()
    parameters = sum(p.numel() for block in DenseSpace().blocks() for p in block.parameters())
    print(f"supernet of {4 * parameters / 1e9:.2f} GB, {REPEATS} repeats")
    for name, train in (("one process", one_process), ("two processes", two_processes)):
        pairs = [(train(None), train(EVERY)) for _ in range(REPEATS)]
        print(f"{name}:")
        plain = show(f"{SUBNETS} subnets without", [without.seconds for without, _ in pairs])
        show(f"{SUBNETS} subnets with {len(DRAINS)} checkpoints", [with_them.seconds for _, with_them in pairs])
        show("lost by a checkpoint", [(b.seconds - a.seconds) / len(DRAINS) for a, b in pairs])
        if train is one_process:
            show("of it writing the last one", [with_them.writing for _, with_them in pairs])
        else:
            print(f"  of it draining, by the plan: {share * plain:.2f} s, {share:.1%} of the training without")
        print(f"  size of the last checkpoint: {pairs[0][1].size / 1e9:.2f} GB", flush=True)


if __name__ == "__main__":
    main()
