"""Going on with a run: what does not fit is refused before anything is written, and what has no effect says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Command

from naspipe import Run
from naspipe.errors import InputError, NaspipeWarning, RunFolderError
from naspipe.files import keep_lines
from naspipe.runs.resuming import reopen
from naspipe.training.progress import Progress


class BrokenOffError(Exception):
    """Breaks a training off."""


@pytest.fixture
def broken_off(tmp_path: Path, tiny: dict[str, Any]) -> Path:
    """A run whose training was broken off after its third checkpoint."""
    tiny["executor"] = {"name": "csp", "stages": 2, "checkpoint": {"every": 8}}

    def watch(progress: Progress) -> None:
        if progress.phase == "train" and progress.done == 26:
            raise BrokenOffError

    with pytest.raises(BrokenOffError):
        Run.create(tiny, tmp_path / "run", watch).train()
    return tmp_path / "run"


def test_a_layout_that_does_not_fit_is_refused_and_leaves_the_run_as_it_was(broken_off: Path, tmp_path: Path) -> None:
    before = (broken_off / "config.yaml").read_text()
    for fork in (None, tmp_path / "fork"):
        with pytest.raises(InputError, match="there are 9 stages for 5 blocks"):
            reopen(broken_off, ["executor.stages=9"], fork)
    assert (broken_off / "config.yaml").read_text() == before
    assert not (tmp_path / "fork").exists()
    assert reopen(broken_off, ["executor.stages=4"]).config.executor.stages == 4
    assert Run.open(broken_off).config.executor.stages == 4


def test_a_layout_that_comes_after_training_says_that_it_has_no_effect(tmp_path: Path, tiny: dict[str, Any]) -> None:
    Run.create(tiny, tmp_path / "run").train()
    with pytest.warns(NaspipeWarning, match=r"executor.\* has no effect: it lays out supernet training"):
        reopen(tmp_path / "run", ["executor.name=csp", "executor.stages=2"])


def test_a_log_that_is_shorter_than_the_checkpoint_is_named(broken_off: Path) -> None:
    log = broken_off / "train" / "metrics.jsonl"
    keep_lines(log, 20)
    with pytest.raises(RunFolderError, match="metrics.jsonl must have 24 lines to resume from, but has 20. Restore"):
        reopen(broken_off).resume()
    log.unlink()
    with pytest.raises(RunFolderError, match="metrics.jsonl must have 24 lines to resume from, but has 0. Restore"):
        reopen(broken_off).resume()


def test_the_command_says_where_it_goes_on_and_when_there_is_nothing_left_to_do(
    command: Command, broken_off: Path
) -> None:
    code, text, _ = command("resume", broken_off)
    assert code == 0
    assert next(line for line in text.splitlines() if line.startswith("Training")).startswith("Training    25/30  loss")
    assert "has finished already" not in text
    code, text, _ = command("resume", broken_off)
    assert code == 0
    assert "The run has finished already; only its report is written anew." in text
    assert "Training" not in text


def test_a_change_by_hand_is_refused_as_one_by_an_option(broken_off: Path) -> None:
    path = broken_off / "config.yaml"
    settings = yaml.safe_load(path.read_text())
    settings["training"]["batch_size"] = 11
    path.write_text(yaml.safe_dump(settings))
    with pytest.raises(RunFolderError, match="training.batch_size was 10 and is 11. .* --fork NEW_RUN"):
        reopen(broken_off).resume()
    fork = reopen(broken_off, [], broken_off.parent / "fork").resume()
    assert fork.config.training.batch_size == 11


def test_a_fork_measures_no_costs_before_it_trains(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy may go another way than the run whose sampler it takes over; that is seen without a profile."""
    tiny["executor"] = {"name": "csp", "stages": 2, "costs": "profile", "checkpoint": {"every": 8}}

    def watch(progress: Progress) -> None:
        if progress.done == 26:
            raise BrokenOffError

    run = Run.create(tiny, tmp_path / "run", watch)
    with pytest.raises(BrokenOffError):
        run.train()
    monkeypatch.delattr("naspipe.training.profiling.profile_costs")
    assert reopen(run.path, ["training.subnets=32"], tmp_path / "fork").config.training.subnets == 32
