"""What is tried before a run starts: every fault is bad input, and leaves nothing behind."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TINY, TinySpace, TinyTask
from torch import nn

import naspipe
from naspipe import NaspipeWarning, Run, Splits, TensorDataset
from naspipe.errors import InputError, SpaceError, TaskError
from naspipe.files import digest_tensors
from naspipe.preflight.task_check import check_task
from naspipe.registry import spaces, tasks
from naspipe.supernet.supernet import Supernet
from naspipe.training.context import RunContext


def fail(*arguments: Any, **more: Any) -> Any:
    raise KeyError("my own fault")


def create(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    task: dict[str, Any] | None = None,
    space: dict[str, Any] | None = None,
    **sections: Any,
) -> Run:
    """Create a run of the tiny space and task with some methods replaced."""
    monkeypatch.setattr(tasks, "_decorated", {})
    monkeypatch.setattr(spaces, "_decorated", {})
    naspipe.register_task("my task")(type("MyTask", (TinyTask,), task or {}))
    naspipe.register_space("my space")(type("MySpace", (TinySpace,), space or {}))
    config = {**TINY, "task": {"name": "my task"}, "space": {"name": "my space"}, **sections}
    return Run.create(config, tmp_path / "new" / "run")


def empty(self: Any, seed: int) -> Splits:
    splits = TinyTask().load(seed)
    return Splits(splits.train, TensorDataset(torch.ones(0), torch.ones(0)), splits.test)


@pytest.mark.parametrize(
    ("method", "value", "message"),
    [
        ("load", lambda self, seed: (1, 2), r"MyTask.load must return naspipe.Splits.*returned \(1, 2\) of"),
        ("load", lambda self, seed: None, "must return naspipe.Splits.*returned None of type NoneType"),
        ("load", lambda self, seed: Splits(1, 2, 3), "MyTask.load must return splits with a length"),
        ("load", empty, "every split must have samples, but validation of MyTask.load has none"),
        ("load", fail, r"MyTask.load failed:\nTraceback .*test_checks.py.*KeyError: 'my own fault'"),
        ("loss", lambda self, o, t: nn.functional.cross_entropy(o, t, reduction="none"),
         r"MyTask.loss must return the summed loss, a scalar, but returned shape \(10,\)"),
        ("loss", lambda self, o, t: 1.0, "summed loss, a scalar, but returned 1.0 of type float"),
        ("loss", fail,
         r"MyTask.loss of outputs with shape \(10, 3\) and targets with shape \(10,\) .*failed:\nTrace"),
        ("weight", lambda self, t: 0, "MyTask.weight must return .* a number above 0, but returned 0"),
        ("weight", lambda self, t: None, "MyTask.weight must return .* a number above 0, but returned None"),
        ("measure", lambda self, o, t: 3, "MyTask.measure must return a mapping .* but returned 3 of type"),
        ("metrics", lambda self, t: None, "MyTask.metrics must return a mapping .* but returned None"),
        ("metrics", lambda self, t: {"f1": 1.0},
         "must return every objective of the search, but 'accuracy' is missing. It returned f1"),
        ("metrics", fail, "MyTask.metrics failed:\nTraceback"),
    ],
)  # fmt: skip
def test_a_task_that_does_not_work_is_refused_before_a_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, value: Any, message: str
) -> None:
    with pytest.raises(TaskError, match=f"(?s){message}") as caught:
        create(tmp_path, monkeypatch, task={method: value})
    assert "naspipe/checks.py" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_dataset_that_returns_no_batch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Pairs(TensorDataset):
        def batch(self, indices: Any, key: int) -> Any:
            return self.inputs[:2], self.targets[:2]

    def load(self: Any, seed: int) -> Splits:
        splits = TinyTask().load(seed)
        return Splits(Pairs(splits.train.inputs, splits.train.targets), splits.validation, splits.test)

    with pytest.raises(TaskError, match=r"the train split must return naspipe.Batch\(inputs, targets\), but"):
        create(tmp_path, monkeypatch, task={"load": load})


def test_a_space_that_does_not_fit_the_data_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def blocks(self: TinySpace) -> Any:
        yield nn.Conv2d(3, self.width, 1)

    message = r"(?s)must fit the task, .* inputs shape \(10, 1, 4, 4\) in training mode of MySpace, arch.*channels"
    with pytest.raises(SpaceError, match=message):
        create(tmp_path, monkeypatch, space={"blocks": blocks})
    assert not list(tmp_path.iterdir())


def test_a_choice_by_a_decision_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def blocks(self: TinySpace) -> Any:
        yield naspipe.ChoiceBlock("opp0", {option: nn.Flatten() for option in self.decisions[0].options})
        yield nn.Linear(16, 3)

    with pytest.raises(SpaceError, match="block 0 chooses by .* no decision 'opp0'. Did you mean 'op0'"):
        create(tmp_path, monkeypatch, space={"blocks": blocks})


def test_too_few_classes_are_refused(tmp_path: Path) -> None:
    config = {**TINY, "task": {"name": "digits"}, "training": {"subnets": 3}}
    message = r"(?s)Digits.loss of outputs with shape \(64, 3\) and .*does the space fit the task.*bounds"
    with pytest.raises(TaskError, match=message):
        Run.create(config, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_normalisation_that_needs_more_than_the_smallest_batch_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blocks(self: TinySpace) -> Any:
        yield nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.BatchNorm1d(3))

    # 36 samples in batches of 5: the last of an epoch has one.
    message = r"(?s)inputs shape \(1, 1, 4, 4\).*more than 1 value per channel"
    with pytest.raises(SpaceError, match=message):
        create(tmp_path, monkeypatch, space={"blocks": blocks}, retrain={"epochs": 1, "batch_size": 5})
    for subnets, refused in ((7, False), (8, True)):
        training = {"subnets": subnets, "batch_size": 5}
        with pytest.raises(SpaceError, match=message) if refused else contextlib.nullcontext():
            create(tmp_path, monkeypatch, space={"blocks": blocks}, training=training)


def test_more_micro_batches_than_samples_are_refused(tmp_path: Path) -> None:
    config = {**TINY, "training": {**TINY["training"], "microbatches": 7}}
    with pytest.raises(InputError, match="training.microbatches must be at most .* is 7, .* a batch has 6"):
        Run.create(config, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_the_check_changes_neither_the_supernet_nor_a_generator() -> None:
    context = RunContext.load(TINY)
    supernet = Supernet(context.components.space, 0)
    before = digest_tensors(supernet.state_dict())
    torch.manual_seed(5)
    state = torch.get_rng_state()
    check_task(context, supernet)
    assert torch.equal(torch.get_rng_state(), state)
    assert digest_tensors(supernet.state_dict()) == before
    assert supernet.training
    assert all(parameter.grad is None for parameter in supernet.parameters())


def test_a_warm_up_as_long_as_the_run_warns(tmp_path: Path) -> None:
    config = {**TINY, "training": {**TINY["training"], "schedule": {"warmup": 30}}}
    with pytest.warns(NaspipeWarning, match="training.schedule.warmup = 30 takes up all 30 steps"):
        Run.create(config, tmp_path / "one")
    # 36 samples in batches of 16 are three steps an epoch.
    config = {**TINY, "retrain": {**TINY["retrain"], "schedule": {"warmup": 6}}}
    with pytest.warns(NaspipeWarning, match="retrain.schedule.warmup = 6 takes up all 6 steps"):
        Run.create(config, tmp_path / "two")
