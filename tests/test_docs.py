"""What the documents show runs, and says what it says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from torch import nn

import naspipe
from naspipe import registry
from naspipe.cli.app import app
from naspipe.config.schema import RunConfig
from naspipe.tasks import digits

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for path in DOCUMENTS:
        for index, text in enumerate(re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)):
            found.append((f"{path.name}-{index}", text))
    return found


FEW = 300
"""Samples of the digits that the documents' code trains with here, of 1,797."""

SHORT = [
    "training.subnets=10", "training.schedule.warmup=0", "search.strategy={name: random}", "search.budget.trials=2",
    "executor.transport=in-process",
]  # fmt: skip
"""What is said anew of the configurations that it loads."""


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the documents' code run as it stands, but on few samples and with short configurations."""
    table, load = digits._read_table()[:FEW], naspipe.load_config
    monkeypatch.setattr(digits, "_read_table", lambda: table)

    def load_short(path: str, overrides: Sequence[str]) -> RunConfig:
        return load(path, [*overrides, *SHORT, *(["space.channels=2"] if path == "examples/digits.yaml" else [])])

    monkeypatch.setattr(naspipe, "load_config", load_short)


@pytest.mark.parametrize("code", [pytest.param(text, id=name) for name, text in blocks("python")])
def test_python_examples_run(
    code: str, tmp_path: Path, short: None, forked_processes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    for kind in registry.REGISTRIES:
        monkeypatch.setattr(kind, "_decorated", {})
    exec(compile(code, "example", "exec"), {"__name__": "example"})


def test_the_documents_task_and_sampler_run_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in registry.REGISTRIES:
        monkeypatch.setattr(kind, "_decorated", {})
    for _, code in blocks("python"):
        if "register_task" in code or "register_sampler" in code:
            exec(compile(code, "example", "exec"), {"__name__": "example"})

    class Curve(naspipe.SearchSpace):
        def __init__(self) -> None:
            super().__init__([naspipe.Decision("width", (4, 8, 16, 32))])

        def blocks(self) -> Iterator[nn.Module]:
            widths = self.decisions[0].options
            yield naspipe.ChoiceBlock(
                "width", {w: nn.Sequential(nn.Linear(1, w), nn.Tanh(), nn.Linear(w, 1)) for w in widths}
            )

    naspipe.register_space("curve")(Curve)
    config = {
        "space": {"name": "curve"},
        "task": {"name": "sine"},
        "sampler": {"name": "sandwich"},
        "training": {"subnets": 20, "microbatches": 2},
        "search": {"strategy": {"name": "random"}, "budget": {"trials": 4}, "objectives": ["absolute"]},
        "retrain": {"epochs": 1},
    }
    assert naspipe.run(config, tmp_path / "run").best_metrics()["test"].keys() == {"loss", "absolute"}


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in blocks("yaml")])
def test_configurations_are_valid(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    naspipe.load_config(path)


def test_the_page_of_the_command_line_names_every_command() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text()
    for command in app.registered_commands:
        assert command.callback is not None
        assert f"`naspipe {command.name or command.callback.__name__}" in page
    for group in app.registered_groups:
        assert f"`naspipe {group.name}" in page
