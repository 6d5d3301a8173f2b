"""Run the examples from end to end: python benchmarks/examples.py [NAME ...]. About two minutes each on two cores.

For each: the time of ``naspipe run``; the test metrics of the retrained subnet; how many standard errors its test loss
lies below that of the same subnet untrained, paired over batches; and whether ``naspipe verify`` holds for sequential
and csp on 1, 2 and 4 stages.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import naspipe
from naspipe.supernet import build_subnet
from naspipe.supernet.normalization import calibrate_statistics
from naspipe.verification.equality import verify

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
NAMES = ("digits", "nasbench201", "resnet", "nni", "vit", "transformer_lm", "transformer_seq2seq")
BATCH = 32
VERIFIED = 12
"""Subnets that each training of the verification trains."""


def batch_losses(run: naspipe.Run, module: nn.Module) -> list[float]:
    """Return the mean loss of each batch of the test split."""
    task, split = run.components.task, run.splits.test
    losses = []
    with torch.no_grad():
        for start in range(0, len(split) - BATCH + 1, BATCH):
            batch = split.batch(list(range(start, start + BATCH)), key=0)
            losses.append(float(task.loss(module(batch.inputs), batch.targets)) / task.weight(batch.targets))
    return losses


def standard_errors(run: naspipe.Run) -> float:
    """Return how many standard errors the retrained subnet's test loss lies below the untrained one's."""
    untrained = build_subnet(run.components.space, run.retrained_architecture(), run.config.seed)
    train = run.splits.train
    calibrate_statistics(untrained, [train.batch(list(range(min(256, len(train)))), key=0).inputs])
    pairs = zip(batch_losses(run, untrained.eval()), batch_losses(run, run.best()), strict=True)
    gains = [before - after for before, after in pairs]
    return statistics.fmean(gains) / (statistics.stdev(gains) / math.sqrt(len(gains)))


def show(name: str, folder: Path) -> None:
    """Run one example and print its line."""
    torch.set_num_threads(1)
    path = EXAMPLES / f"{name}.yaml"
    start = time.perf_counter()
    run = naspipe.run(path, folder / name)
    seconds = time.perf_counter() - start
    checks = list(verify(run.config, ["sequential", "csp"], [1, 2, 4], ["in-process"], VERIFIED))
    scores = ", ".join(f"{metric} {value:.4g}" for metric, value in run.best_metrics()["test"].items())
    verdict = "equal" if all(check.kept for check in checks) else "DIFFERENT"
    print(f"{name:<20} {seconds:4.0f} s  {scores}; {standard_errors(run):.0f} standard errors; {verdict}", flush=True)


def main() -> None:
    """Run what was named, or everything."""
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or NAMES:
            show(name, Path(folder))


if __name__ == "__main__":
    main()
