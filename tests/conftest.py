"""Small spaces, tasks and configurations that the tests share."""

from __future__ import annotations

import copy
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from forked import call_in_fork, fork_server, use_forks
from torch import nn

from naspipe import ChoiceBlock, ClassificationTask, Decision, SearchSpace, Splits, split_tensors
from naspipe.cli import app as cli
from naspipe.testing import Subject, elsewhere


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def forks() -> Iterator[None]:
    """A process that has imported torch and forks for whoever needs another process; see forked.py."""
    with fork_server():
        yield


@pytest.fixture
def forked_processes(forks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processes of workers, stages and the conformance kit be forks, where it matters not how they start."""
    use_forks(monkeypatch.setattr)
    ask_by(monkeypatch, lambda request: json.loads(call_in_fork(_answer_as_text, request)))


def _answer_as_text(request: dict[str, Any]) -> str:
    return json.dumps(elsewhere._answer(request))


def ask_by(monkeypatch: pytest.MonkeyPatch, answer: Callable[[dict[str, Any]], Any]) -> None:
    """Let a function answer the questions that the conformance kit asks another process."""

    def ask(question: Callable[[Subject], Any], subject: Subject) -> Any:
        return answer({"question": f"{question.__module__}:{question.__qualname__}", "subject": subject.to_json()})

    for module in ("space_runs", "samplers", "strategies", "executors", "tasks"):
        monkeypatch.setattr(f"naspipe.testing.{module}.ask_elsewhere", ask)


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command line; returns exit code, output and errors."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["naspipe", *map(str, arguments)])
        capsys.readouterr()
        with warnings.catch_warnings():
            try:
                cli.main()
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1 if end.code else 0
        output = capsys.readouterr()
        return code, output.out, output.err

    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    return call


class TinySpace(SearchSpace):
    """Three choices of convolutions with normalisation and dropout, between a stem and a head."""

    def __init__(self, width: int = 4, blocks: int = 3) -> None:
        self.width = width
        super().__init__(Decision(f"op{i}", ("conv1", "conv3", (3, 2), "skip")) for i in range(blocks))

    def candidate(self, option: Any) -> nn.Module:
        width = self.width
        if option == "skip":
            return nn.Identity()
        kernel, groups = {"conv1": (1, 1), "conv3": (3, 1)}.get(option, option)
        return nn.Sequential(
            nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=groups),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Dropout(0.1),
        )

    def blocks(self) -> Iterator[nn.Module]:
        yield nn.Conv2d(1, self.width, 3, padding=1)
        for decision in self.decisions:
            yield ChoiceBlock(decision, {o: self.candidate(o) for o in decision.options})
        yield nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * self.width, 3))


class TinyTask(ClassificationTask):
    """Random images of three brightnesses."""

    def load(self, seed: int) -> Splits:
        generator = torch.Generator().manual_seed(seed)
        targets = torch.randint(3, (60,), generator=generator)
        inputs = torch.randn(60, 1, 4, 4, generator=generator) + targets.view(-1, 1, 1, 1)
        return split_tensors(inputs, targets, seed, validation=0.2, test=0.2)


TINY: dict[str, Any] = {
    "seed": 3,
    "space": {"name": "conftest:TinySpace"},
    "task": {"name": "conftest:TinyTask"},
    "training": {"subnets": 30, "batch_size": 10, "delay": 2},
    "sampler": {"name": "spaced", "distance": 2},
    "search": {
        "strategy": {"name": "evolution", "population": 4},
        "budget": {"trials": 10},
        "batch_size": 16,
    },
    "retrain": {"epochs": 2, "batch_size": 16},
}


@pytest.fixture
def tiny() -> dict[str, Any]:
    """A configuration that runs from end to end in about a second."""
    return copy.deepcopy(TINY)
