"""Configurations drawn from a seed, each compared with one stage, bit for bit; shared by tests and benchmarks."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from conftest import TINY, TinySpace
from test_training import train
from torch import Tensor, nn

from naspipe import ChoiceBlock
from naspipe.executors import Executor, PipelineShape, StageView
from naspipe.pipeline.action import Action, PlannedAction
from naspipe.pipeline.contract import CAUSAL, Contract
from naspipe.pipeline.planner import Planner
from naspipe.training.trainer import SubnetRecord

Outcome = tuple[dict[str, str], list[SubnetRecord]]

BLOCKS = 9
OPTIMIZERS: list[dict[str, Any]] = [
    {"name": "SGD", "lr": 0.05, "momentum": 0.9},
    {"name": "SGD", "lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    {"name": "AdamW", "lr": 0.01, "weight_decay": 0.1},
    {"name": "Adagrad", "lr": 0.01},
]


class DeepSpace(TinySpace):
    """Nine blocks; between them tuples with an aliased slot, a mask, integers and None."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__(width=4, blocks=BLOCKS - 2)
        self.dropout = dropout

    def candidate(self, option: Any) -> nn.Module:
        module = super().candidate(option)
        for child in module.modules():
            if isinstance(child, nn.Dropout):
                child.p = self.dropout
        return module

    def blocks(self) -> Iterator[nn.Module]:
        yield Split()
        for decision in self.decisions:
            yield Second(ChoiceBlock(decision, {o: self.candidate(o) for o in decision.options}))
        yield Join()


class Split(nn.Module):
    """Make a nest of one tensor twice, a transposed view, and slots without gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)

    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.stem(x)
        return {"same": (y, y), "view": y.transpose(2, 3), "ids": torch.arange(3), "none": None}


class Second(ChoiceBlock):
    """Run the choice on one slot and pass the others on, aliased."""

    def __init__(self, choice: ChoiceBlock) -> None:
        nn.Module.__init__(self)
        self.decision, self._keys, self.candidates = choice.decision, choice._keys, choice.candidates

    def forward(self, x: Any, architecture: Any) -> Any:
        first, second = x["same"]
        y = super().forward(first, architecture) + second * 0.5
        return {**x, "same": (y, second), "view": x["view"] + y.transpose(2, 3)}


class Join(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Any) -> Tensor:
        y = sum((*x["same"], x["view"])) + x["ids"].sum()
        out: Tensor = self.head(y.mean(dim=(2, 3)))
        return out


class AnyOrder(Executor):
    """Takes any ready action, by a draw: whatever is legal under the causal contract."""

    composes_segments = True

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def contract(self, shape: PipelineShape) -> Contract:
        return CAUSAL

    def window(self, shape: PipelineShape) -> int:
        return 3 * shape.stages if shape.delay is None else shape.delay + 1

    def choose(self, ready: Sequence[Action], view: StageView) -> Action | None:
        draw = random.Random(f"{self.seed} {view.stage} {view.forwards} {view.backwards}")
        return draw.choice(list(ready))


class Interleaved:
    """A plan walked as stages do whose pace varies at random: each in its order, waiting for what it needs."""

    def __init__(self, planner: Planner, seed: int) -> None:
        self.shape, self._planner, self._random = planner.shape, planner, random.Random(seed)

    def run(self) -> Iterator[PlannedAction]:
        rows: list[list[PlannedAction]] = [[] for _ in range(self.shape.stages)]
        for planned in self._planner.run():
            rows[planned.action.stage].append(planned)
        parts = self.shape.parts
        done: set[Action | None] = {None}
        while any(rows):
            row = self._random.choice([row for row in rows if row and parts.source_action(row[0].action) in done])
            # A stage may get far ahead.
            for _ in range(self._random.choice([1, 1, 1, 10])):
                if row and parts.source_action(row[0].action) in done:
                    planned = row.pop(0)
                    done.add(planned.action)
                    yield planned


def outcome(
    executor: dict[str, Any], training: dict[str, Any], pace: int | None = None, dropout: float = 0.1, **more: Any
) -> Outcome:
    """Train in one process; with a pace, stages get ahead of each other at random."""
    settings = {"training": {**TINY["training"], **training}, "executor": executor, **more}
    wrap = None if pace is None else lambda planner: Interleaved(planner, pace)
    _, records, model = train(settings, space=DeepSpace(dropout), pace=wrap)
    return {layer.key: layer.digest() for layer in model.own_layers()}, records


def draw_configuration(seed: int) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return an executor, the one-stage executor that it must equal, the training, and what else there is."""
    choose = random.Random(seed)
    stages = choose.randint(1, 8)
    executor: dict[str, Any] = {"name": choose.choice(EXECUTORS), "stages": stages}
    training: dict[str, Any] = {
        "subnets": 20,
        "batch_size": choose.choice([7, 10, 13, 16, 36]),
        "delay": choose.choice([0, 1, 2, 5, 8]),
        "clip_norm": choose.choice([None, 0.5]),
        "precision": choose.choice(["fp32", "fp32", "fp32", "bf16"]),
        "optimizer": choose.choice(OPTIMIZERS),
        "schedule": choose.choice([{"name": "constant"}, {"name": "cosine", "warmup": 3}]),
    }
    # The last batch of an epoch has 36 % batch_size samples.
    training["microbatches"] = 1 if training["batch_size"] == 7 else choose.choice([1, 1, 2, 3])
    reference: dict[str, Any] = {"name": "sequential"}
    if executor["name"] == "csp":
        executor["options"] = {"priority": choose.choice(["chain", "backward"])}
    elif executor["name"] == "any":
        executor.update(name="random_configurations:AnyOrder", options={"seed": seed})
    elif executor["name"] == "bulk":
        executor.update(name="gpipe", options={"bulk": choose.randint(2, 6)})
        reference = {"name": "gpipe", "options": executor["options"]}
        training["delay"] = None
    elif executor["name"] == "pipedream":
        # It equals itself only, whatever the pace of its stages.
        reference = {"name": "pipedream", "stages": stages}
        training["delay"] = None
    if executor["name"] in ("csp", "random_configurations:AnyOrder"):
        executor["segments"] = choose.randint(1, min(3, BLOCKS // stages))
        if choose.random() < 0.5:
            executor["window"] = choose.randint(1, 12)
    if choose.random() < 0.5:
        cuts = [0, *sorted(choose.sample(range(1, BLOCKS), stages - 1)), BLOCKS]
        sizes = [b - a for a, b in itertools.pairwise(cuts)]
        if min(sizes) >= executor.get("segments", 1):
            executor["partition"] = reference_partition = sizes
            if "stages" in reference:
                reference["partition"] = reference_partition
    executor["recompute"] = choose.random() < 0.3
    sampler = choose.choice([{"name": "uniform"}, {"name": "fair"}, {"name": "spaced", "distance": 2}])
    more = {"sampler": sampler, "seed": choose.randrange(1000), "dropout": choose.choice([0.0, 0.1, 0.5])}
    return executor, reference, training, more


EXECUTORS = ["csp", "csp", "any", "any", "gpipe", "bulk", "one_f_one_b", "sequential", "pipedream"]


def check_random_configuration(seed: int) -> None:
    """Draw a configuration and compare with one stage, bit for bit, its stages at a random pace."""
    executor, reference, training, more = draw_configuration(seed)
    expected = outcome(reference, training, **more)
    assert outcome(executor, training, pace=seed, **more) == expected, (seed, executor, training, more)
