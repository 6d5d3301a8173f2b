"""Plans on tensors: any executor, stage count, partition and segments give the bits of one stage."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import TINY
from random_configurations import DeepSpace, check_random_configuration, draw_configuration, outcome
from test_training import train
from torch import nn

from naspipe import Architecture, FixedBlock
from naspipe.errors import InputError, TrainingError
from naspipe.supernet.supernet import LayerParameters
from naspipe.training.layers import Layer
from naspipe.training.part import Part

CONFIGURATIONS = 30
"""Drawn in each run of the tests: about 20 seconds of a free core."""

ADAMW = {"optimizer": {"name": "AdamW", "lr": 0.01, "weight_decay": 0.1}}


TRAININGS: dict[str, dict[str, Any]] = {
    "strict": {"delay": 0},
    "adamw-m2": {"delay": 2, "microbatches": 2, **ADAMW},
    "m4": {"delay": 8, "microbatches": 4},
    "clip-uneven-m3": {"delay": 8, "clip_norm": 0.1, "batch_size": 13, "microbatches": 3},
    "adamw": {"delay": 2, **ADAMW},
    "bf16": {"delay": 2, "precision": "bf16"},
}
LAYOUTS: list[dict[str, Any]] = [
    {"name": "sequential", "stages": 3},
    {"name": "csp", "stages": 1},
    {"name": "csp", "stages": 2, "partition": [1, 8]},
    {"name": "csp", "stages": 3, "segments": 3},
    {"name": "csp", "stages": 4, "window": 5},
    {"name": "csp", "stages": 8, "recompute": True},
    {"name": "csp", "stages": 4, "options": {"priority": "backward"}},
    {"name": "gpipe", "stages": 3},
    {"name": "one_f_one_b", "stages": 4},
]
SAMPLERS: dict[str, dict[str, Any]] = {"uniform": {"name": "uniform"}, "spaced": {"name": "spaced", "distance": 2}}


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_causal_layout_gives_the_bits_of_one_stage(training: str, sampler: str) -> None:
    """Each training in each layout, under one sampler or the other, so that all pairs of the three are there."""
    settings = {"subnets": 20, **TRAININGS[training]}
    expected = outcome({"name": "sequential"}, settings, sampler=SAMPLERS[sampler])
    assert len(expected[1]) == 20
    half = ([*TRAININGS].index(training) + [*SAMPLERS].index(sampler)) % 2
    for executor in LAYOUTS[half::2]:
        assert outcome(executor, settings, sampler=SAMPLERS[sampler]) == expected, executor


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


@pytest.mark.parametrize("first", range(0, CONFIGURATIONS, 10))
def test_random_configurations_give_the_bits_of_one_stage(first: int) -> None:
    """A short run of benchmarks/equality.py, which draws a thousand."""
    for seed in range(first, first + 10):
        check_random_configuration(seed)


def test_the_drawn_configurations_cover_what_there_is_to_draw() -> None:
    drawn = [draw_configuration(seed) for seed in range(CONFIGURATIONS)]
    assert {executor["name"] for executor, *_ in drawn} == {
        "csp", "gpipe", "one_f_one_b", "sequential", "pipedream", "random_configurations:AnyOrder",
    }  # fmt: skip
    assert {executor["stages"] for executor, *_ in drawn} == set(range(1, 9))
    assert {executor.get("segments", 1) for executor, *_ in drawn} == {1, 2, 3}
    for key in ("partition", "window"):
        assert {key in executor for executor, *_ in drawn} == {True, False}
    assert {executor["recompute"] for executor, *_ in drawn} == {True, False}
    assert {training["microbatches"] for _, _, training, _ in drawn} == {1, 2, 3}
    assert {training["delay"] for _, _, training, _ in drawn} == {None, 0, 1, 2, 5, 8}
    assert {training["precision"] for _, _, training, _ in drawn} == {"fp32", "bf16"}
    assert {training["clip_norm"] for _, _, training, _ in drawn} == {None, 0.5}
    assert {training["optimizer"]["name"] for _, _, training, _ in drawn} == {"SGD", "AdamW", "Adagrad"}
    assert {36 % training["batch_size"] for _, _, training, _ in drawn} == {0, 1, 4, 6, 10}
    assert {more["sampler"]["name"] for *_, more in drawn} == {"uniform", "fair", "spaced"}
    assert {more["dropout"] for *_, more in drawn} == {0.0, 0.1, 0.5}


@pytest.mark.parametrize("executor", [{"name": "csp"}, {"name": "random_configurations:AnyOrder"}], ids=["csp", "any"])
def test_stages_at_any_pace_give_the_bits_of_one_stage(executor: dict[str, Any]) -> None:
    training = {"microbatches": 2, "delay": 5, "subnets": 20}
    expected = outcome({"name": "sequential"}, training)
    for pace in range(4):
        found = outcome({**executor, "stages": 4, "segments": 2}, training, pace=pace)
        assert found == expected, pace


def test_what_a_part_held_is_freed_with_its_backward_and_update() -> None:
    settings = {"executor": {"name": "csp", "stages": 4}, "training": {**TINY["training"], "microbatches": 2}}
    _, _, model = train(settings, space=DeepSpace())
    # The transport has checked that nothing was left in it.
    assert all(not part._subnets for part in model.parts.values())
    for layers in model.layers:
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
