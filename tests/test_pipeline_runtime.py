"""Plans on tensors: any executor, stage count, partition and segments give the bits of one stage."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import TINY, TinySpace
from test_training import train
from torch import Tensor, nn

from naspipe import Architecture, ChoiceBlock, FixedBlock
from naspipe.errors import InputError, TrainingError
from naspipe.supernet.supernet import LayerParameters
from naspipe.training.layers import Layer
from naspipe.training.loop import SubnetRecord
from naspipe.training.part import Part
from naspipe.training.setup import layer_digests

Outcome = tuple[dict[str, str], list[SubnetRecord]]


class DeepSpace(TinySpace):
    """Nine blocks; between them tuples with an aliased slot, a mask, integers and None."""

    def __init__(self) -> None:
        super().__init__(width=4, blocks=7)

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


def outcome(executor: dict[str, Any], training: dict[str, Any], **more: Any) -> Outcome:
    settings = {"training": {**TINY["training"], **training}, "executor": executor, **more}
    _, records, trainer = train(settings, space=DeepSpace())
    return layer_digests(trainer), records


ADAMW = {"optimizer": {"name": "AdamW", "lr": 0.01, "weight_decay": 0.1}}


@pytest.mark.parametrize(
    "training",
    [
        {"delay": 0}, {"delay": 2, "microbatches": 2, **ADAMW}, {"delay": 8, "microbatches": 4},
        {"delay": 8, "clip_norm": 0.1, "batch_size": 13, "microbatches": 3}, {"delay": 2, **ADAMW},
        {"delay": 2, "precision": "bf16"},
    ],
    ids=["strict", "adamw-m2", "m4", "clip-uneven-m3", "adamw", "bf16"],
)  # fmt: skip
@pytest.mark.parametrize("sampler", [{"name": "uniform"}, {"name": "spaced", "distance": 2}], ids=str)
def test_every_causal_layout_gives_the_bits_of_one_stage(training: dict[str, Any], sampler: dict[str, Any]) -> None:
    expected = outcome({"name": "sequential"}, training, sampler=sampler)
    assert len(expected[1]) == 30
    for executor in (
        {"name": "sequential", "stages": 3},
        {"name": "csp", "stages": 1},
        {"name": "csp", "stages": 2, "partition": [1, 8]},
        {"name": "csp", "stages": 3, "segments": 3},
        {"name": "csp", "stages": 4, "window": 5},
        {"name": "csp", "stages": 8, "recompute": True},
        {"name": "csp", "stages": 4, "options": {"priority": "backward"}},
        {"name": "gpipe", "stages": 3},
        {"name": "one_f_one_b", "stages": 4},
    ):
        assert outcome(executor, training, sampler=sampler) == expected, executor


def test_precision_changes_the_result() -> None:
    assert outcome({"name": "sequential"}, {"precision": "bf16"}) != outcome({"name": "sequential"}, {})


def test_a_bulk_gives_the_same_bits_at_every_stage_count() -> None:
    training = {"delay": None, "microbatches": 2}
    one = outcome({"name": "gpipe", "options": {"bulk": 4}}, training)
    for stages in (2, 5, 9):
        assert outcome({"name": "gpipe", "stages": stages, "options": {"bulk": 4}}, training) == one
    assert outcome({"name": "gpipe"}, {**training, "delay": 0}) != one


def test_pipedream_depends_on_the_stage_count_as_its_contract_says() -> None:
    training = {"delay": None}
    runs = [outcome({"name": "pipedream", "stages": stages}, training) for stages in (1, 2, 4)]
    assert outcome({"name": "pipedream", "stages": 4}, training) == runs[2]
    assert len({str(run) for run in runs}) == 3
    strict = outcome({"name": "sequential"}, {"delay": 0})
    assert runs[0] == strict


def test_random_configurations_give_the_bits_of_one_stage() -> None:
    """A short run of benchmarks/equality.py, which draws a thousand."""
    for seed in range(12):
        check_random_configuration(seed)


def check_random_configuration(seed: int) -> None:
    """Draw training settings and a layout, and compare with one stage."""
    choose = random.Random(seed)
    stages = choose.randint(1, 8)
    segments = choose.choice([1, 1, 2, 3]) if stages <= 3 else 1
    executor: dict[str, Any] = {"name": "csp", "stages": stages, "segments": segments}
    if segments == 1:
        executor["name"] = choose.choice(["csp", "csp", "gpipe", "one_f_one_b", "sequential"])
    if segments == 1 and choose.random() < 0.5:
        cuts = [0, *sorted(choose.sample(range(1, 9), stages - 1)), 9]
        executor["partition"] = [b - a for a, b in itertools.pairwise(cuts)]
    executor["recompute"] = choose.random() < 0.3
    if executor["name"] == "csp" and choose.random() < 0.5:
        executor["window"] = choose.randint(1, 12)
    training = {
        "subnets": 20,
        "batch_size": choose.choice([10, 13, 16]),
        "microbatches": choose.choice([1, 1, 2]),
        "delay": choose.choice([0, 1, 2, 5, 8]),
        "clip_norm": choose.choice([None, 0.5]),
        "precision": choose.choice(["fp32", "fp32", "bf16"]),
        **choose.choice([ADAMW, {"optimizer": {"name": "SGD", "lr": 0.05, "momentum": 0.9}}]),
    }
    sampler = choose.choice([{"name": "uniform"}, {"name": "fair"}, {"name": "spaced", "distance": 2}])
    more = {"sampler": sampler, "seed": choose.randrange(1000)}
    expected = outcome({"name": "sequential"}, training, **more)
    assert outcome(executor, training, **more) == expected, (seed, executor, training, more)


def test_what_a_part_held_is_freed_with_its_backward_and_update() -> None:
    settings = {"executor": {"name": "csp", "stages": 4}, "training": {**TINY["training"], "microbatches": 2}}
    _, _, trainer = train(settings, space=DeepSpace())
    assert not trainer._subnets
    trainer._transport.finish()
    assert all(not part._subnets for part in trainer._parts.values())
    for layers in trainer.layers:
        for layer in layers.values():
            assert not layer._readers
            assert not layer._pending


def test_recomputing_keeps_no_graph_of_a_forward_and_the_same_losses_under_dropout() -> None:
    training = {"microbatches": 2, **ADAMW}
    kept = outcome({"name": "sequential"}, training)
    assert outcome({"name": "sequential", "recompute": True}, training) == kept
    block = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    held = {}
    for recompute in (False, True):
        spec = LayerParameters(0, "a", True, dict(block.named_parameters()))
        layers = [{"a": Layer(spec, lambda parameters: torch.optim.SGD(parameters, lr=0.1))}]
        part = Part([FixedBlock(block)], layers, 0, 0, recompute)
        part.forward(0, Architecture({}), 0, torch.ones(2, 4, requires_grad=True), [[]])
        (tape,) = part._subnets[0].tapes[0]
        held[recompute] = type(tape).__name__
    assert held == {False: "_Tape", True: "_Script"}


def test_a_partition_for_each_subnet_cannot_be_run() -> None:
    with pytest.raises(InputError, match="can be planned but not run. Set executor.partition to static"):
        outcome({"name": "csp", "stages": 2, "partition": "balanced"}, {})


def test_a_failure_on_a_later_stage_names_its_action() -> None:
    class Late(DeepSpace):
        def blocks(self) -> Iterator[nn.Module]:
            *front, _ = super().blocks()
            yield from front
            yield nn.Flatten(2)

    settings = copy.deepcopy({"executor": {"name": "csp", "stages": 3}})
    with pytest.raises(TrainingError, match=r"action 2F\d, subnet \d \(op0=.*failed: "):
        train(settings, space=Late())
