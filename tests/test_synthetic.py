"""Synthetic samples: their shapes, that a seed decides them, and that they can be learnt a little."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TINY
from text_spaces import CONFIG, Embed
from torch import nn
from torch.utils import _pytree as pytree

import naspipe
from naspipe import Batch, NaspipeWarning
from naspipe.config.resolve import construct
from naspipe.errors import ConfigError
from naspipe.keys import keyed_random
from naspipe.registry import tasks
from naspipe.supernet.supernet import Supernet
from naspipe.tasks.data import EpochOrder
from naspipe.tasks.synthetic import Synthetic

KINDS: dict[str, dict[str, Any]] = {
    "images": {"shape": (2, 5, 7), "classes": 4},
    "tokens": {"length": 6, "vocabulary": 20},
    "pairs": {"source_length": 5, "target_length": 8, "vocabulary": 20},
}


def whole(split: Any) -> Batch:
    return split.batch(range(len(split)), 0)


def test_samples_have_the_shapes_that_were_asked_for() -> None:
    images, tokens, pairs = (
        whole(Synthetic(kind, 16, validation=0.25, test=0.25, **own).load(0).train)  # type: ignore[arg-type]
        for kind, own in KINDS.items()
    )
    assert images.inputs.shape == (8, 2, 5, 7)
    assert (images.targets.shape, images.targets.dtype) == ((8,), torch.int64)
    assert tokens.inputs.shape == tokens.targets.shape == (8, 6)
    assert torch.equal(tokens.inputs[:, 1:], tokens.targets[:, :-1])
    source, so_far = pairs.inputs
    assert (source.shape, so_far.shape, pairs.targets.shape) == ((8, 5), (8, 8), (8, 8))
    assert (so_far[:, 0] == 1).all()
    assert torch.equal(so_far[:, 1:], pairs.targets[:, :-1])
    for ids in (tokens.inputs, tokens.targets, source, pairs.targets):
        assert int(ids.min()) >= 4
        assert int(ids.max()) < 20


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_decides_every_sample_and_no_sample_is_in_two_splits(kind: Any) -> None:
    def flat(seed: int) -> list[torch.Tensor]:
        splits = Synthetic(kind, 40, **KINDS[kind]).load(seed)
        assert splits.sizes() == {"train": 30, "validation": 5, "test": 5}
        batches = [whole(split) for split in (splits.train, splits.validation, splits.test)]
        return [torch.cat(leaves) for leaves in zip(*(pytree.tree_leaves(b.inputs) for b in batches), strict=True)]

    one, same, other = flat(0), flat(0), flat(1)
    assert all(map(torch.equal, one, same))
    assert not torch.equal(one[0], other[0])
    assert len(one[0].flatten(1).unique(dim=0)) == 40


@pytest.mark.parametrize("kind", KINDS)
def test_what_they_hold_can_be_learnt_a_little(kind: Any) -> None:
    task = Synthetic(kind, 400, **KINDS[kind])
    train, validation = task.load(0).train, whole(task.load(0).validation)
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(Embed(20, 16), nn.Linear(16, 20))
    if kind == "images":
        model = nn.Sequential(nn.Flatten(), nn.Linear(70, 4))

    def loss() -> float:
        return task.loss(model(validation.inputs), validation.targets).item() / task.weight(validation.targets)

    before, order = loss(), EpochOrder(train, 25, 0, "test")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(100):
        batch = order.batch(step)
        optimizer.zero_grad()
        (task.loss(model(batch.inputs), batch.targets) / task.weight(batch.targets)).backward()
        optimizer.step()
    assert loss() < 0.9 * before
    sums = task.measure(model(validation.inputs), validation.targets)
    weight = task.weight(validation.targets)
    metrics = task.metrics({**sums, "loss": loss() * weight, "weight": weight})
    assert set(metrics) == set(task.directions)
    assert metrics["accuracy"] > 1.5 / (4 if kind == "images" else 16)


def test_a_parameter_of_another_kind_warns() -> None:
    with pytest.warns(
        NaspipeWarning, match=r"classes = 5 has no effect.*'tokens', which depend on length, vocabulary\."
    ):
        Synthetic("tokens", classes=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        construct(tasks, "synthetic", {"kind": "tokens", "shape": [3, 32, 32], "length": 5})
    with pytest.raises(ConfigError, match=r"task.kind: must be 'images', 'tokens' or 'pairs', but got 'text'"):
        naspipe.Run.create({**TINY, "task": {"name": "synthetic", "kind": "text"}})


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (TINY, {"kind": "images", "shape": [1, 4, 4], "classes": 3}),
        (CONFIG, {"kind": "tokens", "vocabulary": 60, "length": 7}),
        (CONFIG, {"kind": "pairs", "vocabulary": 60, "source_length": 4, "target_length": 6}),
    ],
    ids=KINDS,
)
def test_two_stages_train_bit_for_bit_as_one_and_the_search_runs(
    config: dict[str, Any], parameters: dict[str, Any], tmp_path: Path
) -> None:
    search = {**config["search"], "objectives": ["accuracy"]}
    config = {**config, "search": search, "task": {"name": "synthetic", "samples": 60, **parameters}}
    two = naspipe.Run.create({**config, "executor": {"name": "csp", "stages": 2}}, tmp_path / "two").train().search()
    assert naspipe.Run.create(config, tmp_path / "one").train().digest == two.digest
    assert len(two.trials()) == config["search"]["budget"]["trials"]
    space = two.components.space
    untrained = Supernet(space, 3).extract(space.random_architecture(keyed_random(0)))
    assert untrained.eval()(whole(two.splits.test).inputs).shape[0] == 8
