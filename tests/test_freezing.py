"""Frozen always-active layers: they keep their initial weights, count for no delay, and are trained afterwards."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from conftest import TINY, TinySpace

from naspipe import Run, Supernet
from naspipe.training.context import RunContext, as_config
from naspipe.verification.equality import verify


def settings(**training: Any) -> dict[str, Any]:
    data = copy.deepcopy(TINY)
    data["training"].update(training, freeze_always_active=True)
    return data


def test_stem_and_head_keep_their_weights_and_candidates_do_not(tmp_path: Path) -> None:
    run = Run.create(settings(), tmp_path / "run").train()
    trained, fresh = run.supernet(), Supernet(run.components.space, TINY["seed"])
    for index, (block, before) in enumerate(zip(trained, fresh, strict=True)):
        same = [torch.equal(p, q) for p, q in zip(block.parameters(), before.parameters(), strict=True)]
        assert all(same) == (index in (0, len(trained) - 1))


def test_frozen_layers_are_planned_as_if_they_were_not_there() -> None:
    config = as_config(settings(delay=0))
    planning = RunContext.load(config).planning
    assert planning.scenario().always_active == ()
    assert all(layer.strict for layer in planning.supernet.layers())


def test_frozen_training_is_equal_on_any_number_of_stages() -> None:
    checks = list(verify(as_config(settings(microbatches=2)), ["csp", "gpipe"], [1, 3], ["in-process"], subnets=12))
    assert all(check.kept for check in checks)
    assert sum(bool(check.reference) for check in checks) == len(checks) - 1


def test_the_best_architecture_is_trained_as_a_whole(tmp_path: Path) -> None:
    data = settings()
    data["retrain"]["init"] = "finetune"
    run = Run.create(data, tmp_path / "run").train().search().retrain()
    stem = next(iter(Supernet(run.components.space, TINY["seed"]))).state_dict()
    assert not all(torch.equal(value, stem[f"module.{name}"]) for name, value in run.best()[0].state_dict().items())


def test_frozen_parameters_are_counted() -> None:
    space = TinySpace()
    frozen, free = Supernet(space, 0, freeze_always_active=True), Supernet(space, 0)
    architecture = space.from_indices([0, 1, 3])
    assert frozen.num_parameters() == free.num_parameters()
    assert frozen.num_parameters(architecture) == free.num_parameters(architecture)
