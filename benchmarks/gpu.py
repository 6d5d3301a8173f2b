"""Check and measure on a GPU, or without one on the CPU: python benchmarks/gpu.py. Under five minutes.

Equality, bit for bit, under deterministic algorithms: csp on 1, 2 and 4 stages in one process, gpipe and one_f_one_b,
and csp in two processes that share the device by gloo, each against sequential training; on the convolutions of
NAS-Bench-201 and on perceptrons with bf16. Speed: one stage against a hand-written loop in plain PyTorch, as (a) of
benchmarks/speed.py.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from speed import SUBNETS, by_hand, in_turn, one_stage, show, speed_settings

from naspipe.training.context import as_config
from naspipe.verification.equality import verify

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def check(title: str, settings: dict[str, Any]) -> bool:
    """Train under every executor and print what differs; tell whether nothing does."""
    training = {**settings["training"], "device": DEVICE}
    config = as_config({**settings, "training": training, "executor": {"name": "csp", "backend": "gloo"}})
    kept = True
    cases = [(("csp", "gpipe", "one_f_one_b"), (1, 2, 4), "in-process"), (("csp",), (2,), "distributed")]
    for executors, stages, transport in cases:
        for found in verify(config, executors, stages, [transport]):
            kept = kept and found.kept
            verdict = found.difference or ("equal" if found.reference else "the reference")
            name = f"{title}, {found.executor} on {found.stages} stages, {found.transport}"
            print(f"{name:<64} {verdict}{', CONTRACT BROKEN' if found.violations else ''}", flush=True)
    return kept


def main() -> None:
    """Print all verdicts and figures; exit with 1 if anything differs."""
    start = time.perf_counter()
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if DEVICE == 'cuda' else 'CPU'}")
    cells = {
        "space": {"name": "nasbench201", "channels": 8},
        "task": {"name": "digits"},
        "training": {"subnets": 24, "batch_size": 64, "microbatches": 2},
        "search": {"strategy": {"name": "random"}},
    }
    kept = check("convolutions", cells)
    settings = speed_settings({"name": "sequential"}, {"name": "spaced", "distance": 4})
    settings["training"].update(precision="bf16", subnets=16, optimizer={"name": "AdamW", "lr": 0.001})
    kept = check("perceptrons in bf16", settings) and kept
    one_stage(device=DEVICE)
    hand, stage = in_turn(lambda: by_hand(DEVICE), lambda: one_stage(device=DEVICE))
    ratio = show("one stage", stage) / show("hand-written loop", hand)
    print(f"one stage / hand-written loop, {SUBNETS} subnets: {ratio:.3f}")
    print(f"{'Every result is equal' if kept else 'RESULTS DIFFER'}; {time.perf_counter() - start:.0f} s in all.")
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
