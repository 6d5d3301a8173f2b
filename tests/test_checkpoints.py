"""Checkpoints: a training that is interrupted anywhere and resumed in any layout ends with the same bits."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY

from naspipe.config.schema import CheckpointConfig, RunConfig
from naspipe.errors import NaspipeWarning, RunError, RunFolderError
from naspipe.pipeline.contract import CAUSAL, Contract
from naspipe.pipeline.drain import Admission
from naspipe.training import checkpoint as checkpoint_module
from naspipe.training.checkpoint import CheckpointFolder
from naspipe.training.context import RunContext, as_config
from naspipe.training.drain_schedule import INTERVAL, DrainSchedule
from naspipe.training.files import TrainingFiles
from naspipe.training.recorder import Recorder
from naspipe.training.session import TrainingSession
from naspipe.training.trainer import SubnetRecord

SUBNETS = 40


def configured(executor: dict[str, Any] | None = None, **training: Any) -> RunConfig:
    settings = copy.deepcopy(TINY)
    settings["training"].update(subnets=SUBNETS, **training)
    return as_config({**settings, "executor": executor or {}})


def train(
    config: RunConfig,
    folder: Path | None = None,
    at: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[dict[str, str], list[SubnetRecord]]:
    """Train from a checkpoint or the beginning, writing checkpoints; return the layers' digests and the records."""
    records: list[SubnetRecord] = []
    with tempfile.TemporaryDirectory() as temporary:
        files = TrainingFiles(Path(temporary))
        if at is not None and folder is not None:
            # Of all checkpoints that there are, the training is resumed from this one.
            shutil.copytree(folder / f"{at:09d}", files.checkpoints / f"{at:09d}")
            files.metrics.write_text("{}\n" * at)
        recorder = Recorder()
        session = TrainingSession(
            RunContext.load(config), files, on_subnet=records.append, recorder=recorder, must_stop=stop
        )
        result = session.run()
        if folder is not None and files.checkpoints.exists():
            shutil.copytree(files.checkpoints, folder, dirs_exist_ok=True)
    assert result.trained == (at or 0) + len(records)
    assert [record.index for record in records] == list(range(at or 0, result.trained))
    return result.digests, records


NEVER = {"every": None}
OFTEN = {"every": 7, "keep": 100}
ADAM = {"name": "AdamW", "lr": 0.01}


@pytest.mark.parametrize("delay", [0, 2, 9])
@pytest.mark.parametrize("optimizer", [{"name": "SGD", "lr": 0.05, "momentum": 0.9}, ADAM], ids=["SGD", "AdamW"])
def test_any_checkpoint_leads_to_the_same_bits_in_any_layout(tmp_path: Path, delay: int, optimizer: Any) -> None:
    common = {"delay": delay, "optimizer": optimizer, "microbatches": 2}
    expected, records = train(configured({"name": "sequential", "checkpoint": NEVER}, **common))
    written, again = train(configured({"name": "csp", "stages": 2, "checkpoint": OFTEN}, **common), tmp_path)
    assert written == expected
    assert again == records
    assert CheckpointFolder(tmp_path).indices() == [35, 28, 21, 14, 7]
    layouts = [("csp", 4, 1), ("sequential", 1, 1), ("csp", 3, 1), ("csp", 2, 2), ("one_f_one_b", 2, 1)]
    for at, (name, stages, segments) in zip((7, 14, 21, 28, 35), layouts, strict=True):
        layout = {"name": name, "stages": stages, "segments": segments, "checkpoint": NEVER}
        digests, rest = train(configured(layout, **common), tmp_path, at)
        assert digests == expected, (at, name, stages)
        assert rest == records[at:]


def test_a_checkpoint_written_after_going_on_is_the_one_that_would_have_been_written(tmp_path: Path) -> None:
    config = configured({"name": "csp", "stages": 2, "checkpoint": OFTEN})
    train(config, tmp_path / "whole")
    (tmp_path / "part").mkdir()
    shutil.copytree(tmp_path / "whole" / f"{14:09d}", tmp_path / "part" / f"{14:09d}")
    train(config, tmp_path / "part", 14)
    for name in ("manifest.json", "part0.safetensors"):
        place = Path(f"{35:09d}") / name
        assert (tmp_path / "part" / place).read_bytes() == (tmp_path / "whole" / place).read_bytes()


@pytest.mark.parametrize("sampler", [{"name": "uniform"}, {"name": "fair"}, {"name": "spaced", "distance": 2}])
def test_samplers_that_remember_go_on_where_they_were(tmp_path: Path, sampler: dict[str, Any]) -> None:
    def with_sampler(checkpoint: dict[str, Any]) -> RunConfig:
        settings = copy.deepcopy(TINY)
        settings["training"]["subnets"] = SUBNETS
        executor = {"name": "csp", "stages": 2, "checkpoint": checkpoint}
        return as_config({**settings, "sampler": sampler, "executor": executor})

    expected, records = train(with_sampler(OFTEN), tmp_path)
    digests, rest = train(with_sampler(NEVER), tmp_path, 21)
    assert digests == expected
    assert rest == records[21:]


def test_checkpoints_drain_only_between_bulks(tmp_path: Path) -> None:
    def bulky(checkpoint: dict[str, Any]) -> RunConfig:
        return configured({"name": "gpipe", "stages": 2, "options": {"bulk": 4}, "checkpoint": checkpoint}, delay=None)

    expected, records = train(bulky(NEVER))
    digests, again = train(bulky(OFTEN), tmp_path)
    assert digests == expected
    assert again == records
    assert CheckpointFolder(tmp_path).indices() == [32, 24, 16, 8]
    assert train(bulky(NEVER), tmp_path, 16) == (expected, records[16:])


def test_nothing_is_planned_beyond_a_drain_before_it_has_been_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a process can wait at a drain for one that waits for its decision about a later subnet."""
    context = RunContext.load(configured({"name": "csp", "stages": 2, "checkpoint": {"every": 7, "keep": 100}}))
    asked: list[int] = []
    passed: list[tuple[int, int]] = []
    decide, finish = DrainSchedule.__call__, CheckpointFolder.finish

    def ask(schedule: DrainSchedule, subnet: int) -> Admission:
        asked.append(subnet)
        return decide(schedule, subnet)

    def drained(checkpoints: CheckpointFolder, subnet: int, *more: Any) -> None:
        passed.append((subnet, max(asked)))
        finish(checkpoints, subnet, *more)

    monkeypatch.setattr(DrainSchedule, "__call__", ask)
    monkeypatch.setattr(CheckpointFolder, "finish", drained)
    TrainingSession(context, TrainingFiles(tmp_path)).run()
    # What is asked at once is what may be in flight beside the first subnet after the drain.
    window = context.components.executor.window(context.planning.planner().shape)
    assert [subnet for subnet, _ in passed] == [7, 14, 21, 28, 35]
    assert all(subnet <= last <= subnet + window for subnet, last in passed)
    assert window < 7


def test_a_training_that_is_asked_to_stop_leaves_a_checkpoint_to_go_on_from(tmp_path: Path) -> None:
    config = configured({"name": "csp", "stages": 2, "checkpoint": NEVER})
    expected, records = train(config)
    _, first = train(config, tmp_path, stop=lambda: True)
    assert len(first) == INTERVAL
    assert CheckpointFolder(tmp_path).indices() == [INTERVAL]
    digests, rest = train(config, tmp_path, INTERVAL)
    assert digests == expected
    assert first + rest == records


class TestDrainSchedule:
    def ask(self, schedule: DrainSchedule, count: int = 100) -> list[int]:
        return [subnet for subnet in range(1, count) if schedule(subnet) is not Admission.AT_ONCE]

    def test_it_drains_every_so_many_subnets_in_whole_bulks(self) -> None:
        every = CheckpointConfig(every=30)
        assert self.ask(DrainSchedule(every, CAUSAL)) == [30, 60, 90]
        assert self.ask(DrainSchedule(every, Contract("flush", 4))) == [32, 64, 96]
        assert self.ask(DrainSchedule(every, Contract("stale", 3))) == []

    def test_it_looks_at_the_clock_now_and_then(self) -> None:
        seconds = iter(range(0, 10_000, 25))
        schedule = DrainSchedule(CheckpointConfig(every=None, minutes=1), CAUSAL, clock=lambda: next(seconds))
        assert self.ask(schedule) == [48, 96]

    def test_others_do_what_one_has_decided(self) -> None:
        from torch.distributed import HashStore

        store = HashStore()
        settings = CheckpointConfig(every=30)
        leader = DrainSchedule(settings, CAUSAL, lambda: len(leader.drained) == 2, store)
        follower = DrainSchedule(CheckpointConfig(every=30), CAUSAL, lambda: True, store, decides=False)
        assert self.ask(leader, 65) == self.ask(follower, 65) == [30, 60, 64]
        assert leader.drained == follower.drained == {30, 60, 64}


class TestFiles:
    def damaged(self, folder: Path, name: str, change: Callable[[bytes], bytes]) -> None:
        path = folder / f"{35:09d}" / name
        path.write_bytes(change(path.read_bytes()))

    @pytest.mark.parametrize(
        ("name", "change", "message"),
        [
            ("part0.safetensors", lambda b: b[:-10], "it has .* bytes instead of"),
            ("part0.safetensors", lambda b: b[:-10] + bytes([b[-10] ^ 1]) + b[-9:], "its checksum has changed"),
            ("manifest.json", lambda b: b[:-10], "it is not JSON"),
        ],
        ids=["truncated", "flipped", "manifest"],
    )
    def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
        self, tmp_path: Path, name: str, change: Callable[[bytes], bytes], message: str
    ) -> None:
        train(configured({"checkpoint": OFTEN}), tmp_path)
        self.damaged(tmp_path, name, change)
        with pytest.warns(NaspipeWarning, match=f"{name}.*{message}.*An earlier checkpoint is used"):
            found = CheckpointFolder(tmp_path).latest()
        assert found is not None
        assert found.subnet == 28

    def test_a_checkpoint_without_its_manifest_is_not_there(self, tmp_path: Path) -> None:
        train(configured({"checkpoint": OFTEN}), tmp_path)
        (tmp_path / f"{35:09d}" / "manifest.json").unlink()
        assert CheckpointFolder(tmp_path).indices()[0] == 28

    def test_only_the_last_ones_are_kept(self, tmp_path: Path) -> None:
        train(configured({"checkpoint": {"every": 7, "keep": 2}}), tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == [f"{28:09d}", f"{35:09d}"]

    def test_another_space_is_refused(self, tmp_path: Path) -> None:
        train(configured({"checkpoint": OFTEN}), tmp_path)
        config = configured({"checkpoint": NEVER})
        other = as_config({**config.model_dump(mode="json"), "space": {"name": "conftest:TinySpace", "blocks": 4}})
        with pytest.raises(RunFolderError, match="must hold every layer of the supernet, but lacks 4, .*'4/conv1'"):
            train(other, tmp_path, 35)

    def test_a_write_that_fails_is_tried_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(checkpoint_module, "PAUSE_SECONDS", 0.0)
        real = checkpoint_module.save_tensors
        failures = [1, 1]

        def failing(*arguments: Any) -> None:
            if failures:
                failures.pop()
                raise RunError("the disk is full.")
            real(*arguments)

        monkeypatch.setattr(checkpoint_module, "save_tensors", failing)
        with pytest.warns(NaspipeWarning, match="the disk is full. It is tried again"):
            train(configured({"checkpoint": {"every": 30}}), tmp_path)
        assert CheckpointFolder(tmp_path).indices() == [30]
        failures += [1, 1, 1]
        with pytest.warns(NaspipeWarning), pytest.raises(RunError, match="the disk is full"):
            train(configured({"checkpoint": {"every": 30}}), tmp_path / "other")
