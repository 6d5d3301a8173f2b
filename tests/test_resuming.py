"""Going on with a run: after anything, in any phase and any layout, it ends as if nothing had happened."""

from __future__ import annotations

import importlib.util
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from conftest import TINY, Command, TinyTask

import naspipe
from naspipe import Run
from naspipe.errors import (
    NaspipeWarning,
    RunError,
    RunFolderError,
    StoppedError,
    TrainingError,
)  # fmt: skip
from naspipe.runs.lock import locked
from naspipe.runs.resuming import reopen
from naspipe.training import checkpoint as checkpoint_module
from naspipe.training.checkpoint import CheckpointFolder
from naspipe.training.progress import Progress

HERE = Path(__file__).parent
SUBNETS = 90
EVERY = 20
PROCESSES = {"stages": 2, "transport": "distributed"}


class Unhurried(TinyTask):
    """Takes a while, so that a process can be found at what it does."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        time.sleep(0.01 * ("NASPIPE_TEST_SLOW" in os.environ))
        return super().loss(outputs, targets)

    def measure(self, outputs: Any, targets: Any) -> Any:
        time.sleep(0.05 * ("NASPIPE_TEST_SLOW" in os.environ))
        return super().measure(outputs, targets)


class Mortal(TinyTask):
    """Kills the process of the last stage at the fiftieth loss, as often as a file has lines."""

    calls = 0

    def __init__(self, lives: str = "") -> None:
        self.lives = Path(lives)

    def loss(self, outputs: Any, targets: Any) -> Any:
        Mortal.calls += "RANK" in os.environ
        if Mortal.calls == 50 and (left := self.lives.read_text().splitlines()):
            self.lives.write_text("\n".join(left[1:]))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(outputs, targets)


def settings(**executor: Any) -> dict[str, Any]:
    """Return the tiny configuration with checkpoints."""
    checkpoint = {"every": EVERY, "keep": 3}
    return {
        **TINY,
        "task": {"name": "test_resuming:Unhurried"},
        "training": {**TINY["training"], "subnets": SUBNETS, "microbatches": 2, "delay": 3},
        "executor": {"name": "csp", "stages": 2, "timeout": 60, "checkpoint": checkpoint, **executor},
    }


def kills() -> ModuleType:
    """Return the benchmark, which has what kills processes and compares runs."""
    spec = importlib.util.spec_from_file_location("kills", HERE.parent / "benchmarks" / "kills.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kills"] = module
    spec.loader.exec_module(module)
    return module


KILLS = kills()


def result(path: Path) -> dict[str, str]:
    """Return a digest of each file of a finished run that is the same each time."""
    found: dict[str, str] = KILLS.digests(path)
    return {name: digest for name, digest in found.items() if name != ".lock"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what a run of one stage leaves that nothing disturbs."""
    run = naspipe.run(settings(name="sequential", stages=1), tmp_path_factory.mktemp("undisturbed") / "run")
    found = result(run.path)
    assert {"train/supernet.safetensors", "train/metrics.jsonl", "search/trials.jsonl", "best/metrics.json"} < {*found}
    return found


def broken_off(config: dict[str, Any], path: Path, at: int = 50, phase: str = "train") -> Run:
    """Return a run that was interrupted, in this process, once it had done so much of a phase."""

    def interrupt(progress: Progress) -> None:
        if progress.phase == phase and progress.done == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="To resume: naspipe"):
        naspipe.run(config, path, interrupt)
    return Run.open(path)


def go_on_until(path: Path, overrides: list[str], at: int, phase: str = "train") -> None:
    """Resume a run in this process until so much of a phase is done."""

    def interrupt(progress: Progress) -> None:
        if progress.phase == phase and progress.done == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reopen(path, overrides, watch=interrupt).resume()


def indices(run: Run) -> list[int]:
    return CheckpointFolder(run.folder.training.checkpoints).indices()


class Started:
    """A command that runs in a process of its own, slowly; its output goes to a file."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.run, self.scratch = folder / "run", folder / "tmp"
        self.scratch.mkdir(exist_ok=True)
        self._output = folder / "output.txt"
        with self._output.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "naspipe", *map(str, arguments)], stdout=log, stderr=log, cwd=folder,
                env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(self.scratch), "NASPIPE_TEST_SLOW": "1",
                     "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])},
            )  # fmt: skip

    def reach(self, file: str, lines: int) -> None:
        """Wait until a log has so many lines, or more."""
        end = time.monotonic() + 120
        while self.lines(file) < lines:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < end, f"{file} has {self.lines(file)} lines"
            time.sleep(0.01)

    def lines(self, file: str) -> int:
        return sum(path.read_bytes().count(b"\n") for path in self.run.glob(file))

    def family(self) -> dict[int, str]:
        found: dict[int, str] = KILLS.family_of(self.process.pid)
        return found

    def end(self) -> int:
        return self.process.wait(120)

    @property
    def output(self) -> str:
        return self._output.read_text()


def started(folder: Path, **executor: Any) -> Started:
    """Start a run with two processes, and two workers that evaluate."""
    config = settings(**PROCESSES, **executor)
    config["search"] = {**config["search"], "workers": 2}
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    return Started(folder, "run", "run.yaml", "--out", folder / "run")


def assert_nothing_left(folder: Path, *families: dict[int, str]) -> None:
    """Check that no process and no temporary file is there any more, and no lock is held."""
    end = time.monotonic() + 20
    while left := [pid for family in families for pid in family if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < end, left
        time.sleep(0.05)
    # Torch makes one folder for compiled code that all processes share.
    assert [path for path in (folder / "tmp").iterdir() if not path.name.startswith("torchinductor_")] == []
    with locked(folder / "run"):
        pass


PLACES = [("train/metrics.jsonl", SUBNETS), ("search/trials.jsonl", 10), ("retrain/*/epochs.jsonl", 2)]


def test_kills_at_random_moments_of_any_process_change_no_byte(tmp_path: Path, undisturbed: dict[str, str]) -> None:
    """One in each phase; benchmarks/kills.py does a hundred."""
    chance = random.Random(7)
    families = []
    process = started(tmp_path)
    for file, most in PLACES:
        process.reach(file, chance.randrange(1, most))
        families.append(process.family())
        victim = chance.choice(sorted(families[-1]))
        os.kill(victim, signal.SIGKILL)
        code = process.end()
        assert code == (-signal.SIGKILL if victim == process.process.pid else 1) or code == 0, process.output
        if file != PLACES[-1][0]:
            process = Started(tmp_path, "resume", tmp_path / "run")
    assert_nothing_left(tmp_path, *families)
    reopen(tmp_path / "run").resume()
    assert result(tmp_path / "run") == undisturbed


def test_sigterm_in_any_phase_leaves_what_resume_goes_on_from(tmp_path: Path, undisturbed: dict[str, str]) -> None:
    process = started(tmp_path, checkpoint={"every": None})
    families = []
    for file in ("train/metrics.jsonl", "search/trials.jsonl"):
        process.reach(file, 3)
        with pytest.raises(RunFolderError, match=rf"process {process.process.pid} works in"):
            reopen(tmp_path / "run", ["executor.stages=4" if file.startswith("train") else "search.workers=3"])
        families.append(process.family())
        # As Slurm does: to all of them.
        for pid in families[-1]:
            os.kill(pid, signal.SIGTERM)
        assert process.end() == 143, process.output
        assert "stopped by SIGTERM" in process.output
        assert "To resume: naspipe " in process.output
        if file.startswith("train"):
            run = Run.open(tmp_path / "run")
            # Nothing that was trained is lost.
            assert indices(run) == [process.lines(file)]
            # The rest of the training needs no processes.
            go_on_until(run.path, ["executor.transport=in-process", "search.workers=1"], 1, "search")
            process = Started(tmp_path, "resume", tmp_path / "run", "--set", "search.workers=2")
    assert_nothing_left(tmp_path, *families)
    reopen(tmp_path / "run", ["search.workers=1"]).resume()
    assert result(tmp_path / "run") == undisturbed


def test_stages_that_die_are_started_again_and_go_on(
    tmp_path: Path, undisturbed: dict[str, str], forked_processes: None
) -> None:
    lives = tmp_path / "lives"
    lives.write_text("x\nx\nx")
    config = settings(**PROCESSES, restarts=1)
    config["task"] = {"name": "test_resuming:Mortal", "lives": str(lives)}
    with pytest.raises(TrainingError, match="the process of stage 1 .* was ended by SIGKILL"):
        naspipe.run(config, tmp_path / "run")
    assert lives.read_text() == "x"
    assert reopen(tmp_path / "run").resume().path == tmp_path / "run"
    assert lives.read_text() == ""
    # Its task has another name.
    noted = "train/settings.json"
    found = result(tmp_path / "run")
    assert {**found, noted: ""} == {**undisturbed, noted: ""}


@pytest.fixture(scope="module")
def halfway(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, Path], Run]:
    """Return what makes a run that was interrupted when so many subnets had been trained; each is trained once."""
    made: dict[int, Path] = {}

    def copy(at: int, path: Path) -> Run:
        if at not in made:
            made[at] = broken_off(settings(), tmp_path_factory.mktemp("halfway") / "run", at).path
        return Run.open(shutil.copytree(made[at], path))

    return copy


class TestInOneProcess:
    @pytest.fixture
    def interrupted(self, halfway: Callable[[int, Path], Run], tmp_path: Path) -> Run:
        return halfway(50, tmp_path / "run")

    @pytest.mark.parametrize(("phase", "at"), [("train", 1), ("train", 50), ("retrain", 1)])
    def test_an_interrupt_is_gone_on_from(
        self, command: Command, tmp_path: Path, undisturbed: dict[str, str], phase: str, at: int
    ) -> None:
        run = broken_off(settings(), tmp_path / "run", at, phase)
        code, text, errors = command("resume", run.path)
        assert (code, errors) == (0, "")
        assert "Best architecture" in text
        assert result(run.path) == undisturbed

    @pytest.mark.parametrize(
        ("phase", "at", "message"),
        [
            ("train", 50, "after 60 of 90 subnets. To resume: naspipe resume"),
            ("train", SUBNETS, "after 90 of 90 subnets. To resume: naspipe resume"),
            ("retrain", 1, "SIGTERM. To resume: naspipe retrain"),
        ],
    )  # fmt: skip
    def test_sigterm_is_gone_on_from(
        self, tmp_path: Path, undisturbed: dict[str, str], phase: str, at: int, message: str
    ) -> None:
        def stop(progress: Progress) -> None:
            if progress.phase == phase and progress.done == at:
                os.kill(os.getpid(), signal.SIGTERM)

        with pytest.raises(StoppedError, match=message) as caught:
            naspipe.run(settings(), tmp_path / "run", stop)
        assert caught.value.exit_code == 143
        reopen(tmp_path / "run").resume()
        assert result(tmp_path / "run") == undisturbed

    def test_sigterm_is_no_failure_of_what_is_being_evaluated(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, str]
    ) -> None:
        run, measure = Run.create(settings(), tmp_path / "run").train(), TinyTask.measure
        monkeypatch.setattr(TinyTask, "measure", lambda *a: os.kill(os.getpid(), signal.SIGTERM) or measure(*a))
        with pytest.raises(StoppedError, match="stopped by SIGTERM"):
            run.search()
        assert Run.open(tmp_path / "run").trials() == []
        monkeypatch.undo()
        reopen(tmp_path / "run").resume()
        assert result(tmp_path / "run") == undisturbed

    def test_the_number_of_stages_and_the_executor_may_change(
        self, tmp_path: Path, undisturbed: dict[str, str]
    ) -> None:
        layouts = [["executor.stages=4"], ["executor.stages=1"], ["executor.stages=3", "executor.segments=1"]]
        path = broken_off(settings(), tmp_path / "run", 25).path
        for place, layout in enumerate(layouts):
            go_on_until(path, layout, 45 + 20 * place)
        with pytest.warns(NaspipeWarning, match="executor.options of 'csp' are dropped"):
            reopen(path, ["executor.name=sequential", "executor.stages=1"]).resume()
        assert Run.open(path).config.executor.name == "sequential"
        assert result(path) == undisturbed

    def test_a_layout_that_does_not_fit_is_refused_and_forgotten(self, interrupted: Run, command: Command) -> None:
        before = interrupted.folder.config.read_bytes()
        code, _, errors = command("resume", interrupted.path, "--set", "executor.stages=99")
        assert code == 2
        assert "99 stages" in errors
        assert interrupted.folder.config.read_bytes() == before

    def test_trials_that_were_ahead_of_others_come_into_their_order(
        self, tmp_path: Path, undisturbed: dict[str, str]
    ) -> None:
        run = broken_off(settings(), tmp_path / "run", 5, "search")
        first, _, third, *_ = run.folder.trials.read_bytes().splitlines(keepends=True)
        # As it is when one of two workers is interrupted.
        run.folder.trials.write_bytes(first + third)
        run.folder.study.unlink()
        reopen(run.path).resume()
        assert result(run.path) == undisturbed

    def test_a_run_of_one_process_goes_on_in_several_and_back(
        self, interrupted: Run, undisturbed: dict[str, str], forked_processes: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("NASPIPE_TEST_SLOW", "1")

        def stop(progress: Progress) -> None:
            if progress.done == 55:
                os.kill(os.getpid(), signal.SIGTERM)

        with pytest.raises(StoppedError, match="after (64|80) of 90 subnets"):
            reopen(interrupted.path, ["executor.transport=distributed"], watch=stop).resume()
        monkeypatch.delenv("NASPIPE_TEST_SLOW")
        reopen(interrupted.path, ["executor.transport=in-process", "executor.stages=3"]).resume()
        assert result(interrupted.path) == undisturbed

    def test_what_changes_results_is_refused_by_name(self, interrupted: Run, command: Command) -> None:
        before = interrupted.folder.config.read_bytes()
        sets = ["training.subnets=100", "training.optimizer.lr=0.5", "seed=9", "executor.stages=4"]
        code, _, errors = command("resume", interrupted.path, *(part for s in sets for part in ("--set", s)))
        assert code == 2
        for text in ("seed was 3 and would be 9", "training.subnets was 90 and would be 100", "optimizer.lr was 0.05",
                     "--fork NEW_RUN"):  # fmt: skip
            assert text in errors
        assert "executor.stages" not in errors
        assert interrupted.folder.config.read_bytes() == before

    def test_another_contract_is_refused(self, tmp_path: Path) -> None:
        config = settings(name="gpipe", options={"bulk": 4})
        config["training"]["delay"] = None
        run = broken_off(config, tmp_path / "run")
        with pytest.raises(RunFolderError, match=r"same contract, but executor 'gpipe' keeps flush\(4\) and 'gpipe'"):
            reopen(run.path, ["executor.options.bulk=8"])

    def test_a_stale_run_cannot_go_on_and_says_why(self, tmp_path: Path, command: Command) -> None:
        config = settings(name="pipedream")
        config["training"]["delay"] = None

        def stop(progress: Progress) -> None:
            if progress.done == 50:
                os.kill(os.getpid(), signal.SIGTERM)

        with pytest.raises(StoppedError, match="'pipedream' writes no checkpoints. To train anew: naspipe train"):
            naspipe.run(config, tmp_path / "run", stop)
        assert not (tmp_path / "run" / "train" / "checkpoints").exists()
        code, _, errors = command("resume", tmp_path / "run")
        assert code == 2
        assert "contract stale(1): subnets read weights that are being changed meanwhile" in errors
        with pytest.raises(RunFolderError, match="at no moment could its training be resumed exactly"):
            Run.open(tmp_path / "run").resume()
        # It trains as it did before there were checkpoints.
        never = {**config, "executor": {**config["executor"], "checkpoint": {"every": None}}}
        digests = {Run.create(each, tmp_path / name).train().digest for name, each in (("a", config), ("b", never))}
        assert len(digests) == 1

    def test_two_cannot_go_on_at_the_same_time(self, interrupted: Run, command: Command) -> None:
        before = interrupted.folder.config.read_bytes()
        with locked(interrupted.path):
            for more in ((), ("--set", "executor.stages=4"), ("--fork", interrupted.path.parent / "fork")):
                code, _, errors = command("resume", interrupted.path, *more)
                assert code == 2
                assert f"but process {os.getpid()} works in" in errors
        assert interrupted.folder.config.read_bytes() == before

    def test_nobody_comes_in_between_two_phases(self, interrupted: Run) -> None:
        def intrude(progress: Progress) -> None:
            with pytest.raises(RunFolderError, match="works in"), locked(interrupted.path):
                pass

        reopen(interrupted.path, watch=intrude).resume()

    def test_a_fork_may_change_anything_and_leaves_the_run_alone(
        self, interrupted: Run, tmp_path: Path, undisturbed: dict[str, str]
    ) -> None:
        before = {path: path.read_bytes() for path in interrupted.path.rglob("*") if path.is_file()}
        fork = reopen(interrupted.path, ["training.optimizer.lr=0.5", "search.budget.trials=4"], tmp_path / "fork")
        fork.resume()
        assert {path: path.read_bytes() for path in interrupted.path.rglob("*") if path.is_file()} == before
        assert Run.open(tmp_path / "fork").config.training.optimizer.lr == 0.5
        lines = fork.folder.training.metrics.read_text().splitlines()
        assert lines[:40] == interrupted.folder.training.metrics.read_text().splitlines()[:40]
        assert lines[40] != interrupted.folder.training.metrics.read_text().splitlines()[40]
        assert len(lines) == SUBNETS
        with pytest.raises(RunFolderError, match="fork exists"):
            reopen(interrupted.path, [], tmp_path / "fork")
        reopen(interrupted.path).resume()
        assert result(interrupted.path) == undisturbed

    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            (["training.subnets=30"], "before which 40 subnets have been trained, but training.subnets is 30"),
            (["sampler={name: fair}"], "'fair' cannot continue from the state saved at subnet 40"),
        ],
    )
    def test_a_fork_that_cannot_go_on_says_why(
        self, interrupted: Run, tmp_path: Path, overrides: list[str], message: str
    ) -> None:
        with pytest.raises(RunFolderError, match=message):
            reopen(interrupted.path, overrides, tmp_path / "fork").resume()


class TestFiles:
    @pytest.fixture
    def interrupted(self, halfway: Callable[[int, Path], Run], tmp_path: Path) -> Run:
        run = halfway(70, tmp_path / "run")
        assert indices(run) == [60, 40, 20]
        return run

    @pytest.fixture(autouse=True)
    def quickly(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(checkpoint_module, "PAUSE_SECONDS", 0.0)

    def damage(self, run: Run, index: int, change: Callable[[bytes], bytes]) -> None:
        part = run.folder.training.checkpoints / f"{index:09d}" / "part0.safetensors"
        part.write_bytes(change(part.read_bytes()))

    def test_damaged_checkpoints_are_named_and_the_one_before_is_used(
        self, interrupted: Run, undisturbed: dict[str, str]
    ) -> None:
        self.damage(interrupted, 60, lambda content: content[:-1])
        self.damage(interrupted, 40, lambda content: content[:-9] + bytes([content[-9] ^ 4]) + content[-8:])
        first = []
        with (
            pytest.warns(NaspipeWarning, match="000000060/part0.* is damaged: it has .* bytes instead of"),
            pytest.warns(NaspipeWarning, match="000000040/part0.* is damaged: its checksum has changed"),
        ):
            reopen(interrupted.path, watch=first.append).resume()
        assert first[0].done == 21
        assert result(interrupted.path) == undisturbed

    def test_where_all_are_damaged_training_begins_anew(self, interrupted: Run, undisturbed: dict[str, str]) -> None:
        for index in indices(interrupted):
            self.damage(interrupted, index, lambda content: b"")
        first = []
        with pytest.warns(NaspipeWarning, match="An earlier checkpoint is used, if there is one"):
            reopen(interrupted.path, watch=first.append).resume()
        assert first[0].done == 1
        assert result(interrupted.path) == undisturbed

    def test_a_full_disk_ends_training_and_loses_nothing_before_the_last_checkpoint(
        self, tmp_path: Path, undisturbed: dict[str, str]
    ) -> None:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        def fill(progress: Progress) -> None:
            if progress.done == 30:
                # Enough for the log, but for no checkpoint.
                resource.setrlimit(resource.RLIMIT_FSIZE, (9000, before[1]))

        try:
            with (
                pytest.warns(NaspipeWarning, match="It is tried again"),
                pytest.raises(RunError, match="(?s)cannot be written: .*File too large"),
            ):
                naspipe.run(settings(), tmp_path / "run", fill)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
        assert indices(Run.open(tmp_path / "run")) == [20]
        reopen(tmp_path / "run").resume()
        assert result(tmp_path / "run") == undisturbed

    def test_a_full_file_system_ends_training_and_is_gone_on_from(
        self, tmp_path: Path, undisturbed: dict[str, str]
    ) -> None:
        place = tmp_path / "small"
        place.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", place], capture_output=True)
        if mounted.returncode:
            pytest.skip(f"no small file system can be mounted here: {mounted.stderr.decode().strip()}")
        try:
            with (
                pytest.warns(NaspipeWarning, match="It is tried again"),
                pytest.raises(RunError, match="No space left on device"),
            ):
                naspipe.run(settings(checkpoint={"every": 5, "keep": 100}), place / "run")
            subprocess.run(["mount", "-o", "remount,size=50m", place], check=True)
            kept = indices(Run.open(place / "run"))
            assert len(kept) > 1
            first = []
            reopen(place / "run", watch=first.append).resume()
            assert first[0].done == kept[0] + 1
            assert result(place / "run") == undisturbed
        finally:
            subprocess.run(["umount", place], check=True)

    def test_a_folder_that_cannot_be_written_to_ends_training_and_is_named(self, tmp_path: Path) -> None:
        run = Run.create(settings(), tmp_path / "run")
        run.folder.training.checkpoints.parent.mkdir()
        # Not by its permissions: they do not hold for root.
        run.folder.training.checkpoints.write_text("a file where the folder should be")
        with pytest.warns(NaspipeWarning), pytest.raises(RunError, match="train/checkpoints/.* cannot be written"):
            run.train()

    def test_what_a_killed_run_has_left_is_taken_away(self, interrupted: Run, undisturbed: dict[str, str]) -> None:
        train = interrupted.folder.supernet.parent
        unfinished = interrupted.folder.training.checkpoints / f"{64:09d}" / "part1.json"
        hidden = (
            train / ".metrics.jsonl.123",
            train / ".launcher" / "x" / "error",
            interrupted.path / ".config.yaml.77",
        )
        for left in (*hidden, train / "stage1.safetensors", unfinished, interrupted.path / "search/study.journal.lock"):
            left.parent.mkdir(parents=True, exist_ok=True)
            left.write_text("half")
        reopen(interrupted.path).resume()
        assert result(interrupted.path) == undisturbed

    def test_checkpoints_of_a_training_that_has_ended_are_taken_away(
        self, interrupted: Run, tmp_path: Path, undisturbed: dict[str, str]
    ) -> None:
        kept = shutil.copytree(interrupted.folder.training.checkpoints, tmp_path / "kept")
        path = interrupted.path
        reopen(path).resume()
        # As after a kill between the two.
        shutil.copytree(kept, interrupted.folder.training.checkpoints)
        reopen(path).resume()
        assert result(path) == undisturbed

    def test_a_run_waits_for_processes_that_a_killed_one_has_left(
        self, interrupted: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from naspipe.training.distributed import leftovers

        monkeypatch.setattr(leftovers, "PATIENCE_SECONDS", 0.3)
        with (
            leftovers.working_in(interrupted.folder.supernet.parent),
            pytest.raises(RunFolderError, match="no process of it is left, but a process still holds"),
        ):
            reopen(interrupted.path).resume()


@pytest.mark.parametrize("executor", [{}, {"transport": "distributed"}, {"name": "gpipe", "options": {"bulk": 4}}])
def test_the_trace_of_a_training_that_drains_keeps_its_contract(
    tmp_path: Path, command: Command, executor: dict[str, Any], forked_processes: None
) -> None:
    config = settings(**executor, checkpoint={"every": 8})
    if executor.get("name") == "gpipe":
        config["training"]["delay"] = None
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    assert command("train", tmp_path / "run.yaml", "--out", tmp_path / "run", "--trace")[0] == 0
    code, text, _ = command("plan", tmp_path / "run" / "train" / "trace.json")
    assert code == 0
    assert "kept" in text
