"""Ask which supernets rank rightly: python benchmarks/supernets.py --out DIR [--csv FILE] [--html FILE].

One factor at a time on a small NAS-Bench-201 and Fashion-MNIST: the sampler, the delay of always-active layers, and
PipeDream's stale weights. Every supernet scores the same architectures, drawn at random; the truth is what each reaches
on the test split when it is trained alone. About 40 minutes on one core. What has been computed is kept in DIR as lines
of JSON, so that a study that was broken off goes on, and more seeds can be added. Needs the extra ``nasbench``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots
from ranking import TOP, Bootstrap, correlations, found

import naspipe
from naspipe.errors import InputError
from naspipe.files import JsonLines, read_lines, reading, write_csv, write_json, write_text
from naspipe.keys import keyed_random
from naspipe.search.evaluation import Evaluator, measure_split
from naspipe.space import Architecture
from naspipe.supernet import build_subnet
from naspipe.supernet.determinism import deterministic
from naspipe.tasks.loading import load_splits
from naspipe.training.components import Components, build_components
from naspipe.training.context import as_config
from naspipe.training.standalone import retrain
from naspipe_spaces.nasbench201 import EDGES, NASBench201
from naspipe_spaces.nasbench201_table import true_accuracy

TASK = f"{Path(__file__).resolve().parent}/small_fashion.py:SmallFashionMNIST"
OPTIMIZER = {"name": "SGD", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.0005}
BASELINE = "baseline: uniform, D = 8"
STRICT = "D = 0"
STALE = "pipedream, 4 stages"
LONG = "D = 8, 3 x as long"
LONG_STRICT = "D = 0, 3 x as long"


@dataclass(frozen=True)
class Setting:
    """How a supernet is trained; within the causal contract the executor changes no bit.

    Attributes:
        sampler: The section of the configuration.
        delay: Of the always-active layers, or None where the executor's contract governs all layers.
        executor: The section of the configuration.
        times: Its training is so many times as long as that of the others.
        seeds: Supernets at most, where that takes too long.
    """

    sampler: Mapping[str, Any] = field(default_factory=lambda: {"name": "uniform"})
    delay: int | None = 8
    executor: Mapping[str, Any] = field(default_factory=lambda: {"name": "sequential"})
    times: int = 1
    seeds: int | None = None


SETTINGS = {
    BASELINE: Setting(),
    "fair": Setting(sampler={"name": "fair"}),
    "spaced, distance 3": Setting(sampler={"name": "spaced", "distance": 3}),
    STRICT: Setting(delay=0),
    "D = 32": Setting(delay=32),
    STALE: Setting(delay=None, executor={"name": "pipedream", "stages": 4}),
    LONG: Setting(times=3, seeds=1),
    LONG_STRICT: Setting(delay=0, times=3, seeds=1),
}
SHORT = [setting for setting, chosen in SETTINGS.items() if chosen.times == 1]
COMPARED = [
    *((setting, BASELINE) for setting in SHORT if setting != BASELINE),
    (STALE, STRICT),
    (LONG, BASELINE),
    (LONG_STRICT, LONG),
]
"""Which settings are subtracted from which."""


@dataclass(frozen=True)
class Sizes:
    """What must be the same for all that is kept in one folder.

    Attributes:
        architectures: How many are scored, and trained alone.
        channels: Of the first stage.
        shrink: Pixels in each direction that become one; 2 makes images of 14 x 14.
        train_samples: Images to train on.
        subnets: Steps of a supernet's training.
        batch_size: Samples in each of them.
        epochs: Of the training of one architecture alone.
    """

    architectures: int
    channels: int
    shrink: int
    train_samples: int
    subnets: int
    batch_size: int
    epochs: int


def draw_architectures(space: NASBench201, count: int) -> list[Architecture]:
    """Return distinct architectures at random, the same in every study; those that cannot learn are left out."""
    drawn: list[Architecture] = []
    index = 0
    while len(drawn) < count:
        architecture = space.random_architecture(keyed_random(0, "supernets", index))
        if architecture not in drawn and is_connected(architecture):
            drawn.append(architecture)
        index += 1
    return drawn


def is_connected(architecture: Architecture) -> bool:
    """Tell whether a path of operations other than ``none`` leads from the cell's input to its output."""
    reached = {0}
    for source, target in EDGES:  # In the order of their targets.
        if source in reached and architecture[f"edge{source}{target}"] != "none":
            reached.add(target)
    return 3 in reached


def configuration(sizes: Sizes, setting: str, seed: int) -> dict[str, Any]:
    """Return the configuration of one supernet, and of the architectures that are trained alone."""
    chosen = SETTINGS[setting]
    return {
        "seed": seed,
        "space": {"name": "nasbench201", "channels": sizes.channels},
        "task": {"name": TASK, "shrink": sizes.shrink, "train_samples": sizes.train_samples},
        "training": {
            "subnets": sizes.subnets * chosen.times,
            "batch_size": sizes.batch_size,
            "delay": chosen.delay,
            "optimizer": OPTIMIZER,
            "schedule": {"warmup": min(100, sizes.subnets // 2)},
        },
        "sampler": dict(chosen.sampler),
        "executor": dict(chosen.executor),
        "search": {"calibration_batches": 2},
        "retrain": {"epochs": sizes.epochs, "optimizer": OPTIMIZER},
    }


def train_supernet(sizes: Sizes, setting: str, seed: int, architectures: Sequence[Architecture]) -> dict[str, Any]:
    """Train a supernet and return its digest and the validation accuracy of each architecture."""
    with tempfile.TemporaryDirectory() as folder:
        run = naspipe.Run.create(configuration(sizes, setting, seed), Path(folder) / "run").train()
        with deterministic(run.config.training.threads, run.config.training.device):
            evaluator = Evaluator(run.supernet(), run.components.task, run.splits, run.config)
            scores = [evaluator.evaluate(architecture)["accuracy"] for architecture in architectures]
        return {"digest": run.digest, "scores": scores}


@lru_cache(maxsize=1)
def prepare(sizes: Sizes, seed: int) -> tuple[naspipe.RunConfig, Components, naspipe.Splits]:
    """Return what the architectures that are trained alone have in common."""
    config = as_config(configuration(sizes, BASELINE, seed))
    components = build_components(config)
    return config, components, load_splits(components.task, seed)


def train_alone(sizes: Sizes, architecture: Architecture, seed: int) -> float:
    """Train one architecture from fresh weights; return its test accuracy."""
    config, components, splits = prepare(sizes, seed)
    device = config.training.device
    with deterministic(config.training.threads, device):
        module = build_subnet(components.space, architecture, seed)
        retrain(module, components.task, splits.train, config.retrain, seed, device, lambda record: None)
        scores = measure_split(module, components.task, splits.test, config.search.batch_size, device)
    return float(scores["accuracy"])


class Study:
    """What has been computed, in a folder; ``run`` adds what is missing."""

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        """Open the folder, or begin it.

        Raises:
            InputError: What it holds was computed with other sizes.
        """
        self.sizes = sizes
        self.architectures = draw_architectures(NASBench201(channels=sizes.channels), sizes.architectures)
        self._supernets, self._alone = folder / "supernets.jsonl", folder / "alone.jsonl"
        path = folder / "sizes.json"
        if path.exists():
            with reading(str(path), "Give another --out."):
                kept = json.loads(path.read_text(encoding="utf-8"))
            if kept != vars(sizes):
                raise InputError(f"a study must keep its sizes, but {path} has {kept}. Give those, or another --out.")
        write_json(path, vars(sizes))

    def run(self, seeds: int, retrainings: int) -> None:
        """Train and score what is missing, and say how long each took.

        Args:
            seeds: Supernets of each setting.
            retrainings: Trainings of each architecture alone.
        """
        done = {(line["seed"], line["index"]) for line in read_lines(self._alone)}
        trained = {(line["seed"], line["setting"]) for line in read_lines(self._supernets)}
        pairs = [(seed, index) for seed in range(retrainings) for index in range(self.sizes.architectures)]
        with JsonLines(self._alone) as alone:
            for seed, index in pairs:
                if (seed, index) not in done:
                    start = time.perf_counter()
                    accuracy = train_alone(self.sizes, self.architectures[index], seed)
                    seconds = round(time.perf_counter() - start, 1)
                    alone.append({"seed": seed, "index": index, "accuracy": accuracy, "seconds": seconds})
                    print(f"seed {seed}, alone {index}: {accuracy:.4f}, {seconds} s", flush=True)
        with JsonLines(self._supernets) as supernets:
            for seed in range(seeds):
                for setting, chosen in SETTINGS.items():
                    if seed < (chosen.seeds or seeds) and (seed, setting) not in trained:
                        start = time.perf_counter()
                        result = train_supernet(self.sizes, setting, seed, self.architectures)
                        seconds = round(time.perf_counter() - start, 1)
                        supernets.append({"seed": seed, "setting": setting, **result, "seconds": seconds})
                        print(f"seed {seed}, {setting}: {np.mean(result['scores']):.4f}, {seconds} s", flush=True)

    def alone(self, retrainings: int) -> np.ndarray:
        """Return the stand-alone accuracies, in percent: (retrainings, architectures)."""
        kept = {(line["seed"], line["index"]): 100 * line["accuracy"] for line in read_lines(self._alone)}
        places = range(self.sizes.architectures)
        return np.array([[kept[seed, index] for index in places] for seed in range(retrainings)])

    def scores(self, seeds: int) -> dict[str, np.ndarray]:
        """Return the supernets' accuracies, in percent, by setting: (its seeds, architectures)."""
        kept = {(line["seed"], line["setting"]): 100 * np.array(line["scores"]) for line in read_lines(self._supernets)}
        return {
            setting: np.array([kept[seed, setting] for seed in range(min(seeds, chosen.seeds or seeds))])
            for setting, chosen in SETTINGS.items()
        }


def spread(values: np.ndarray, digits: int = 2) -> str:
    """Return mean, least and greatest of some values; of one, the value."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{values.mean():.{digits}f} ({values.min():.{digits}f} to {values.max():.{digits}f})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def show_truth(alone: np.ndarray, benchmark: np.ndarray) -> None:
    """Print what the truth is made of, and how far it can be trusted."""
    truth = alone.mean(axis=0)
    print(f"\nStand-alone test accuracy of {len(truth)} architectures: {spread(truth)},")
    print(f"standard deviation between architectures {truth.std(ddof=1):.2f}")
    if len(alone) > 1:
        noise = np.sqrt(alone.var(axis=0, ddof=1).mean())
        tau, rho = correlations(alone[1:], alone[0]).mean(axis=1)
        print(f"standard deviation between trainings of one architecture {noise:.2f};")
        print(f"of the first training of all with another: tau {tau:.2f}, rho {rho:.2f}")
    (tau,), (rho,) = correlations(truth[None], benchmark)
    print(f"with NAS-Bench-201's CIFAR-10 accuracy: tau {tau:.2f}, rho {rho:.2f}\n")


def show_settings(
    scores: Mapping[str, np.ndarray], truth: np.ndarray, benchmark: np.ndarray, bootstrap: Bootstrap
) -> None:
    """Print the tables: what each setting reaches, and how it differs from others."""
    rows = []
    for setting, values in scores.items():
        (taus, rhos), (first, top) = correlations(values, truth), found(values, truth)
        intervals = [f"{low:.2f} to {high:.2f}" for low, high in bootstrap.interval(setting)]
        of_table = f"{correlations(values, benchmark)[0].mean():.2f}"
        rows.append(
            [
                *(setting, spread(values.mean(axis=1), 1), spread(taus), intervals[0], spread(rhos), intervals[1]),
                *(spread(first), spread(top), of_table),
            ]
        )
    head = ["", "mean score", "tau", "95 %", "rho", "95 %", "first", f"first {TOP}", "tau with NAS-Bench-201"]
    print(table(head, rows))
    rows = []
    for setting, other in COMPARED:
        seeds = min(len(scores[setting]), len(scores[other]))
        one, two = scores[setting][:seeds], scores[other][:seeds]
        change, gain = correlations(one, truth) - correlations(two, truth), one.mean(axis=1) - two.mean(axis=1)
        intervals = [f"{low:.2f} to {high:.2f}" for low, high in bootstrap.interval(setting, other)]
        ranks = [spread(change[0]), intervals[0], spread(change[1]), intervals[1]]
        rows.append([f"{setting}, minus {other}", spread(gain, 1), *ranks])
    print(table(["", "mean score", "tau", "95 %", "rho", "95 %"], rows))


def figure(scores: Mapping[str, np.ndarray], truth: np.ndarray, bootstrap: Bootstrap) -> go.Figure:
    """Return the mean score, tau, and the accuracy of what is ranked first, for every supernet."""
    titles = ("Mean score, percent", "Kendall's tau", "Stand-alone accuracy of the first")
    drawing = make_subplots(rows=1, cols=3, subplot_titles=titles, shared_yaxes=True, horizontal_spacing=0.03)
    for setting, values in reversed(list(scores.items())):
        taus, first = correlations(values, truth)[0], found(values, truth)[0]
        for column, numbers in enumerate((values.mean(axis=1), taus, first), start=1):
            mean, bars = numbers.mean(), None
            if column == 2:
                low, high = bootstrap.interval(setting)[0]
                bars = {"type": "data", "symmetric": False, "array": [high - mean], "arrayminus": [mean - low]}
            dots = {"color": "#e07b39", "size": 8, "opacity": 0.7}
            diamond = {"color": "#1f4e79", "size": 11, "symbol": "diamond"}
            for x, marker, error in ((numbers, dots, None), ([mean], diamond, bars)):
                drawing.add_scatter(
                    x=x, y=[setting] * len(x), mode="markers", marker=marker, error_x=error, row=1, col=column
                )
    drawing.add_vline(x=0, line_dash="dot", row=1, col=2)
    for value, note in ((truth.max(), "best"), (truth.mean(), "mean")):
        drawing.add_vline(
            x=value, line_dash="dot", annotation_text=note, annotation_position="bottom left", row=1, col=3
        )
    return drawing.update_layout(template="plotly_white", showlegend=False, height=480, width=1200)


def rows_of(scores: Mapping[str, np.ndarray], truth: np.ndarray) -> Iterator[dict[str, object]]:
    """Yield a row for each supernet."""
    for setting, values in scores.items():
        (taus, rhos), (first, top) = correlations(values, truth), found(values, truth)
        for seed, mean in enumerate(values.mean(axis=1)):
            figures = (mean, taus[seed], rhos[seed], first[seed], top[seed])
            yield {"setting": setting, "seed": seed, **dict(zip(COLUMNS, figures, strict=True))}


COLUMNS = ("mean score", "tau", "rho", "first", f"first {TOP}")


def main() -> None:
    """Compute what is missing, print the tables and write the files asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder that keeps what has been computed")
    parser.add_argument("--seeds", type=int, default=3, help="supernets of each setting")
    parser.add_argument("--retrainings", type=int, default=2, help="trainings of each architecture alone")
    parser.add_argument("--architectures", type=int, default=20)
    parser.add_argument("--channels", type=int, default=8)
    parser.add_argument("--shrink", type=int, default=2)
    parser.add_argument("--train-samples", type=int, default=10_000)
    parser.add_argument("--subnets", type=int, default=1_200)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--html", type=Path)
    given = parser.parse_args()
    sizes = Sizes(**{size.name: getattr(given, size.name) for size in fields(Sizes)})
    try:
        study = Study(given.out, sizes)
    except InputError as error:
        parser.error(str(error))
    study.run(given.seeds, given.retrainings)
    alone, scores = study.alone(given.retrainings), study.scores(given.seeds)
    truth = alone.mean(axis=0)
    benchmark = np.array([true_accuracy(architecture) for architecture in study.architectures])
    show_truth(alone, benchmark)
    bootstrap = Bootstrap(scores, truth)
    show_settings(scores, truth, benchmark, bootstrap)
    if given.csv:
        write_csv(given.csv, ("setting", "seed", *COLUMNS), rows_of(scores, truth))
    if given.html:
        write_text(given.html, figure(scores, truth, bootstrap).to_html(config={"displayModeBar": False}))


if __name__ == "__main__":
    main()
