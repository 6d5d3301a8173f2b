"""Train NNI's own spaces in a pipeline of two stages and compare with one stage, bit for bit.

Run: python benchmarks/nni_spaces.py [names]. The table it prints is in docs/nni.md.
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from sklearn.datasets import load_digits

from naspipe import ClassificationTask, NaspipeWarning, Splits, Supernet, split_tensors

sys.path.insert(0, str(Path(__file__).resolve().parent))

HUB = "nni.nas.hub.pytorch"

SPACES: dict[str, tuple[str, dict[str, Any], int, float]] = {
    "ShuffleNetSpace": ("ShuffleNetSpace", {"num_labels": 10}, 160, 0.003),
    "ProxylessNAS": ("ProxylessNAS", {"num_labels": 10, "width_mult": 0.5}, 160, 0.003),
    "NasBench201": ("NasBench201", {"num_modules_per_stack": 1}, 200, 0.003),
    "DARTS": ("DARTS", {"width": 8, "num_cells": 6, "dataset": "cifar", "drop_path_prob": 0.2}, 100, 0.003),
    "MobileNetV3Space": ("MobileNetV3Space", {"num_labels": 10}, 10, 0.001),
    "AutoFormer": ("AutoFormer", {"num_labels": 10, "img_size": 32, "search_depth": [4, 5, 6]}, 20, 0.001),
}
"""Class, arguments, number of subnets to train and learning rate, by name."""


class Digits32(ClassificationTask):
    """scikit-learn's digits, enlarged to (3, 32, 32)."""

    def load(self, seed: int) -> Splits:
        """Return the digits."""
        digits = load_digits()
        small = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
        images = torch.nn.functional.interpolate(small, scale_factor=4).expand(-1, 3, -1, -1).contiguous()
        return split_tensors(images, torch.tensor(digits.target), seed, validation=0.2, test=0.2)


def config_of(name: str) -> dict[str, Any]:
    """Return the configuration of a space."""
    cls, arguments, subnets, lr = SPACES[name]
    return {
        "seed": 0,
        "space": {"name": "nni", "model": f"{HUB}:{cls}", "arguments": arguments},
        "task": {"name": "nni_spaces:Digits32"},
        "training": {"subnets": subnets, "batch_size": 16, "delay": 2, "optimizer": {"name": "Adam", "lr": lr}},
        "executor": {"name": "csp", "stages": 2},
        "search": {"strategy": {"name": "random"}, "budget": {"trials": 1}},
    }


def measure(name: str) -> None:
    """Train a space with one and with two stages, and print a row."""
    from naspipe.training.components import build_components
    from naspipe.training.context import as_config
    from naspipe.verification.equality import verify

    config = as_config(config_of(name))
    space = build_components(config).space
    supernet = Supernet(space, 0)
    start = time.process_time()
    checks = []
    for check in verify(config, ["csp"], [2], ["in-process"]):
        checks.append((check, time.process_time() - start))
        start = time.process_time()
    losses = [loss for loss in checks[0][0].outcome.losses if loss is not None]
    strict = sum(layer.strict for layer in supernet.layers())
    row = [
        name, len(space.decisions), f"{space.size:.2g}", len(supernet), strict, *SPACES[name][2:],
        f"{mean(losses[:10]):.2f}", f"{mean(losses[-10:]):.2f}",
        "equal" if all(check.kept for check, _ in checks) else f"DIFFERENT: {checks[1][0].difference}",
        *(f"{seconds:.0f}" for _, seconds in checks),
    ]  # fmt: skip
    print("| " + " | ".join(map(str, row)) + " |", flush=True)


def main() -> None:
    """Print a table."""
    warnings.simplefilter("ignore", NaspipeWarning)
    torch.set_num_threads(1)
    titles = ["space", "decisions", "architectures", "blocks", "strict layers", "subnets", "lr", "loss, first 10",
              "loss, last 10", "1 and 2 stages", "CPU s, 1 stage", "CPU s, 2 stages"]  # fmt: skip
    print("| " + " | ".join(titles) + " |\n|" + " --- |" * len(titles), flush=True)
    for name in sys.argv[1:] or SPACES:
        measure(name)


if __name__ == "__main__":
    main()
