"""Under torchrun: the same command in every process, one leads and the others train their stages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import TINY, Command
from torch.distributed import HashStore

import naspipe
from naspipe import Run
from naspipe.training.distributed import torchrun as torchrun_processes

HERE = Path(__file__).parent
FAULTY = """
import os
from conftest import TinyTask

class Faulty(TinyTask):
    calls = 0

    def loss(self, outputs, targets):
        Faulty.calls += os.environ.get("RANK") == "1"
        if Faulty.calls == 10:
            raise RuntimeError("my loss is broken")
        return super().loss(outputs, targets)
"""


def torchrun(folder: Path, config: dict[str, Any], *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "naspipe"]
    return subprocess.run(
        [*launcher, "train", "run.yaml", "--out", "run", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=200,
        env={**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def settings(**executor: Any) -> dict[str, Any]:
    more = {"name": "csp", "stages": 2, "transport": "distributed", "timeout": 60, **executor}
    return {**TINY, "executor": more}


def test_torchrun_gives_the_bits_of_one_stage(tmp_path: Path) -> None:
    done = torchrun(tmp_path, settings(), "--trace", "--set", "executor.costs=profile")
    assert done.returncode == 0, done.stderr
    assert "causal: kept" in done.stdout
    alone = Run.create({**TINY, "executor": {"name": "sequential"}}, tmp_path / "alone").train()
    run = Run.open(tmp_path / "run")
    assert run.digest == alone.digest
    assert run.folder.training.metrics.read_bytes() == alone.folder.training.metrics.read_bytes()


def test_a_stage_that_fails_ends_all_with_its_message(tmp_path: Path) -> None:
    (tmp_path / "faults.py").write_text(FAULTY)
    done = torchrun(tmp_path, {**settings(), "task": {"name": "faults.py:Faulty"}})
    assert done.returncode == 1
    assert "action 1F" in done.stderr
    assert "my loss is broken" in done.stderr
    assert (tmp_path / "run" / "train" / "metrics.jsonl").read_text().count("\n") >= 1


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    store = HashStore()
    monkeypatch.setattr(torchrun_processes, "find_store", lambda: store)
    # Who runs the tests may end before them.
    monkeypatch.setattr(torchrun_processes, "end_with", lambda launcher: None)
    return monkeypatch


@pytest.mark.parametrize(
    ("name", "executor", "message"),
    [
        ("train", {}, "must start a process for each of the 2 stages, but started 3. Set executor.stages, or"),
        ("train", {"transport": "in-process"}, "started 3 processes, but executor.transport is 'in-process'"),
        ("verify", {}, "`naspipe train` and `naspipe resume`, but has started 3 processes of `naspipe verify`"),
    ],
)
def test_what_torchrun_cannot_serve_is_refused(
    name: str, executor: dict[str, Any], message: str, started: pytest.MonkeyPatch, tmp_path: Path, command: Command
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(settings(**executor)))
    code, _, errors = command(name, path)
    assert code == 2
    assert message in errors


def test_a_run_that_is_resumed_needs_a_process_for_each_stage_too(
    started: pytest.MonkeyPatch, tmp_path: Path, command: Command
) -> None:
    with started.context() as alone:
        alone.delenv("TORCHELASTIC_RUN_ID")
        run = Run.create(settings(), tmp_path / "run")
    code, _, errors = command("resume", run.path)
    assert code == 2
    assert "must start a process for each of the 2 stages, but started 3" in errors


def test_a_process_that_follows_makes_no_run(started: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started.setenv("RANK", "1")
    with pytest.raises(naspipe.errors.InputError, match="only that of rank 0 makes a run"):
        Run.create(settings(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
