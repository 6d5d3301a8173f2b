"""Files of a run: damage is named with file and line, and a broken end is no damage."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import TINY, TinyTask

import naspipe
from naspipe import NaspipeWarning, Run, RunError
from naspipe.errors import RunFolderError
from naspipe.files import JsonLines, read_lines, save_tensors, write_text
from naspipe.results.retraining_rows import row_folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return naspipe.run(TINY, tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def copy(trained: Run, tmp_path: Path) -> Run:
    """A finished run that a test may damage."""
    for path in trained.path.rglob("*"):
        if path.is_file():
            target = tmp_path / "run" / path.relative_to(trained.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return Run.open(tmp_path / "run")


@pytest.mark.parametrize("end", [b'{"a": 2', b'{"a": "\xc3', b"\0\0\0"])
def test_a_last_line_that_was_broken_off_is_left_out_and_cut_off_before_the_next(tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"a": 1}\n' + end)
    with pytest.warns(NaspipeWarning, match="lines.jsonl, line 2 is incomplete, since its writing was interrupted"):
        assert list(read_lines(path)) == [{"a": 1}]
    with JsonLines(path) as log:
        log.append({"a": 3})
    assert path.read_text() == '{"a": 1}\n{"a": 3}\n'


def test_a_last_line_without_its_line_break_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}')
    assert list(read_lines(path)) == [{"a": 1}, {"a": 2}]
    with JsonLines(path) as log:
        log.append({"a": 3})
    assert list(read_lines(path)) == [{"a": 1}, {"a": 2}, {"a": 3}]


def test_a_search_that_was_killed_while_it_wrote_goes_on(copy: Run, trained: Run) -> None:
    whole = trained.folder.trials.read_bytes()
    copy.folder.best_architecture.unlink()
    copy.folder.trials.write_bytes(whole[: len(whole) // 2])
    copy.folder.study.unlink()  # It is written after the trials, so a search that was killed has no more there.
    with pytest.warns(NaspipeWarning, match="trials.jsonl, line .* is incomplete"):
        copy.search()
    assert copy.folder.trials.read_bytes() == whole


Damage = Callable[[Run], object]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("damage", "use", "message"),
    [
        (lambda run: edit(run.folder.trials, "{", "x"), lambda run: run.trials(),
         "trials.jsonl, line 1 cannot be read: it is not JSON.*Delete it and every line below"),
        (lambda run: edit(run.folder.trials, '"trial"', '"trail"'), lambda run: run.trials(),
         "trials.jsonl, line 1 cannot be read: trial must be given, but is missing"),
        (lambda run: run.folder.trials.write_text("3\n"), lambda run: run.trials(),
         "trials.jsonl, line 1 cannot be read: must be a mapping, but got 3"),
        (lambda run: edit(run.folder.trials, '"op0"', '"op9"'), lambda run: run.trials(),
         "trials.jsonl, line 1 cannot be read: .*TinySpace"),
        (lambda run: edit(run.folder.trials, '"accuracy"', '"acc"'),
         lambda run: list(run.folder.evaluated(run.components.space, run.components.objectives)),
         "trials.jsonl, line 1 cannot be read: objective 'accuracy' is missing"),
        (lambda run: run.folder.environment.write_text("[1]"), lambda run: run.folder.facts(),
         "environment.json cannot be read: .*To resume without the facts of the machine"),
        (lambda run: run.folder.trials.write_bytes(b'"\xe9"\n{}\n'), lambda run: run.trials(),
         "trials.jsonl, line 1 cannot be read: 'utf-8' codec"),
        (lambda run: edit(run.folder.training.metrics, '"loss": ', '"loss": NaN, "x": '),
         lambda run: list(run.folder.training.subnets()),
         "metrics.jsonl, line 1 cannot be read: loss must be a finite number, but got nan"),
        (lambda run: run.folder.best_architecture.write_text("[]"), lambda run: run.best_architecture(),
         "architecture.json cannot be read: .*Delete it and run `naspipe search"),
        (lambda run: run.folder.best_metrics.write_text("{}"), lambda run: run.best_metrics(),
         "metrics.json cannot be read: text must be given, .* Delete it and run `naspipe retrain"),
        (lambda run: run.folder.best_metrics.write_bytes(b"\xff"), lambda run: run.best_metrics(),
         "metrics.json cannot be read: 'utf-8' codec"),
    ],
)  # fmt: skip
def test_damage_is_named_with_file_line_and_what_to_do(copy: Run, damage: Damage, use: Damage, message: str) -> None:
    damage(copy)
    with pytest.raises(RunFolderError, match=f"(?s){message}"):
        use(copy)
    copy.report()
    assert "cannot be" in copy.folder.report.read_text() or "damaged" in copy.folder.report.read_text()


def full_disk(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_that_cannot_be_written_is_a_run_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "x"
    for write in (
        lambda: write_text(path, "x"),
        lambda: JsonLines(path),
        lambda: save_tensors(path, {"a": torch.ones(1)}, {}),
    ):
        with pytest.raises(RunError, match=r"file/x cannot be written: .*(exists|directory)") as caught:
            write()
        assert caught.value.__cause__ is None
    with JsonLines(tmp_path / "log") as log:
        monkeypatch.setattr(log._file, "write", full_disk)
        with pytest.raises(RunError, match="log cannot be written: No space left on device"):
            log.append({"a": 1})


def test_a_full_disk_ends_a_phase_with_the_name_of_the_file(copy: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    copy.folder.best_architecture.unlink()

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(RunError, match=r"best/architecture.json cannot be written: No space left on device"):
        copy.search()
    assert {path.name for path in copy.folder.best_model.parent.iterdir()} == {
        "model.safetensors", "metrics.json", "epochs.jsonl",
    }  # fmt: skip


def test_two_processes_do_not_work_in_one_folder(copy: Run) -> None:
    for name in ("best_metrics", "best_architecture", "supernet"):
        getattr(copy.folder, name).unlink()
    code = (
        "import sys, naspipe; from pathlib import Path; from naspipe.runs.lock import locked\n"
        f"with locked(Path({str(copy.path)!r})):\n    print('locked', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        for phase in (copy.train, copy.search, copy.retrain):
            with pytest.raises(RunFolderError, match=f"one process at a time .* process {other.pid} works in"):
                phase()
        other.communicate("\n")
    with pytest.raises(RunFolderError, match="training that was interrupted"):
        copy.train()


def test_a_folder_that_cannot_be_made_leaves_no_parents_behind(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="cannot be made: File name too long"):
        Run.create(TINY, tmp_path / "a" / "b" / ("x" * 300))
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be made: Not a directory"):
        Run.create(TINY, tmp_path / "file" / "run")


@pytest.mark.parametrize("bad", [float("nan"), "text", None])
def test_a_metric_that_is_no_finite_number_is_dropped_after_retraining(tmp_path: Path, bad: object) -> None:
    class Sometimes(TinyTask):
        def metrics(self, totals: object) -> dict[str, object]:
            return {**super().metrics(totals), "extra": bad}

    naspipe.registry.tasks._decorated.pop("sometimes-by-test_files", None)
    naspipe.register_task("sometimes-by-test_files")(Sometimes)
    run = naspipe.run({**TINY, "task": {"name": "sometimes-by-test_files"}}, tmp_path / "run")
    assert set(run.best_metrics()["test"]) == {"accuracy", "loss"}
    assert json.loads(run.folder.trials.read_text().splitlines()[0])["metrics"].keys() == {
        "accuracy", "loss", "uncalibrated_accuracy", "uncalibrated_loss", "parameters",
    }  # fmt: skip


def test_a_task_that_fails_after_retraining_leaves_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.create(TINY, tmp_path / "run").train().search()
    monkeypatch.setattr(TinyTask, "metrics", lambda self, totals: {}["gone"])
    with pytest.raises(RunError, match="evaluating the retrained model on the validation split failed: KeyError"):
        run.retrain()
    (row,) = run.rows()
    assert row_folder(run.folder, row).model.exists()
