"""The rank check on a run folder: what it computes, looks up, writes and refuses."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from conftest import TINY, Command, TinySpace, TinyTask

import naspipe
from naspipe import Architecture, Run, Splits, registry
from naspipe.errors import InputError, NaspipeWarning, RunError, RunFolderError
from naspipe.keys import keyed_random
from naspipe.records import Direction
from naspipe.results.rank_files import RankFiles
from naspipe.runs import rank_check, rank_truths
from naspipe.runs.rank_check import UNTRAINED
from naspipe.runs.rank_truths import Retraining
from naspipe.search import ranking
from naspipe.search.measure import Measure, Subnet
from naspipe.space.distinct import distinct_architectures
from naspipe.training.progress import Progress
from naspipe_spaces.nasbench201_table import true_accuracy

CONFIG = {**TINY, "retrain": {**TINY["retrain"], "epochs": 1}}


def quality(architecture: Architecture) -> float:
    """Tell all 64 architectures of the tiny space apart."""
    options = TinySpace().decisions[0].options
    return float(sum(4**place * options.index(option) for place, option in enumerate(architecture.values())))


class Table(Measure):
    """A made-up truth."""

    direction: ClassVar[Direction] = "maximize"

    def measure(self, subnet: Subnet) -> float:
        return quality(subnet.architecture)


class Errors(Table):
    """The same truth, to be minimised."""

    direction: ClassVar[Direction] = "minimize"

    def measure(self, subnet: Subnet) -> float:
        return -quality(subnet.architecture)


class Holes(Table):
    """A truth of some architectures only."""

    def measure(self, subnet: Subnet) -> float:
        if subnet.architecture["op0"] == "skip":
            raise ValueError("no entry for a skip")
        return quality(subnet.architecture)


class Sized(Table):
    """What needs more than the architecture."""

    def measure(self, subnet: Subnet) -> float:
        return float(len(list(subnet.module.parameters())))


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "RESAMPLES", 20)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Run.create(CONFIG, tmp_path_factory.mktemp("runs") / "trained").train().path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Run:
    return Run.open(shutil.copytree(trained, tmp_path / "run"))


def score_by(monkeypatch: pytest.MonkeyPatch, score: Callable[[Architecture], float], untrained: float = -1.0) -> None:
    """Let a function take the supernet's place."""

    def evaluation(run: Run, weights: str) -> Callable[[Architecture], Mapping[str, object]]:
        return lambda architecture: {"accuracy": score(architecture) if weights == "trained" else untrained}

    monkeypatch.setattr(rank_check, "_evaluation", evaluation)


def contents(run: Run) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.folder.rank_check.iterdir()}


@pytest.mark.parametrize("truth", ["Table", "Errors"])
def test_a_supernet_that_scores_by_the_truth_gets_one_whatever_is_minimised(
    run: Run, monkeypatch: pytest.MonkeyPatch, truth: str
) -> None:
    score_by(monkeypatch, quality)
    record = run.rank_check(f"test_rank_check:{truth}", 20)
    assert record.kendall.value == 1
    assert record.warnings == []
    score_by(monkeypatch, lambda architecture: -quality(architecture), untrained=-100.0)
    (run.folder.rank_check / "scores.jsonl").unlink()
    assert run.rank_check(f"test_rank_check:{truth}", 20).kendall.value == -1


def test_a_score_that_is_minimised_is_turned_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {**CONFIG, "search": {**TINY["search"], "objectives": ["parameters", "loss"]}}
    run = Run.create(config, tmp_path / "loss").train()

    def evaluation(run: Run, weights: str) -> Callable[[Architecture], Mapping[str, object]]:
        return lambda architecture: {"loss": -quality(architecture) if weights == "trained" else 1.0}

    monkeypatch.setattr(rank_check, "_evaluation", evaluation)
    record = run.rank_check("test_rank_check:Table", 20)
    assert (record.score, record.score_direction, record.kendall.value) == ("loss", "minimize", 1)
    assert [line.score for line in record.architectures] == sorted(line.score for line in record.architectures)
    assert record.gain.better == UNTRAINED


def test_retrained_architectures_spread_from_the_best_to_the_worst_score_of_a_pool_five_times_as_large(
    run: Run,
) -> None:
    record = run.rank_check(architectures=4, seeds=2)
    assert (record.against, record.pool, record.truth) == ("retrain", 20, "accuracy")
    assert [line.rank for line in record.architectures] == [1, 7, 14, 20]
    scores = [line.score for line in record.architectures]
    assert scores == sorted(scores, reverse=True)
    for line in record.architectures:
        assert len(line.truths) == 2
        assert line.truth == sum(line.truths) / 2
        # Of two values the deviation is their distance over the root of two; the last digit is rounded.
        assert line.spread == pytest.approx(abs(line.truths[0] - line.truths[1]) / 2**0.5, abs=1e-12)
        assert line.untrained is not None
    assert any("small: 4 architectures" in warning for warning in record.warnings)
    assert len((run.folder.rank_check / "truths-retrain.jsonl").read_text().splitlines()) == 8
    assert json.loads((run.folder.rank_check / "retrain.json").read_text()) == json.loads(record.model_dump_json())


def test_a_check_interrupted_after_every_step_computes_nothing_twice_and_ends_the_same(
    run: Run, trained: Path, tmp_path: Path
) -> None:
    run.rank_check(architectures=4, seeds=2)
    steps: list[Progress] = []

    def interrupt(progress: Progress) -> None:
        steps.append(progress)
        raise KeyboardInterrupt

    again = Run.open(shutil.copytree(trained, tmp_path / "again"), interrupt)
    for _ in range(20 + 4 + 8):
        with pytest.raises(KeyboardInterrupt, match=r"To resume: naspipe rank-check .*again --against retrain"):
            again.rank_check(architectures=4, seeds=2)
    again.rank_check(architectures=4, seeds=2)
    assert [(step.phase, step.done, step.total) for step in steps] == [
        *(("score", done, 20) for done in range(1, 21)),
        *(("untrained", done, 4) for done in range(1, 5)),
        *(("truth", done, 8) for done in range(1, 9)),
    ]
    assert contents(again) == contents(run)


@pytest.mark.parametrize("lines", [0, 1, 13, 24])
def test_a_line_that_was_broken_off_is_computed_again(run: Run, lines: int) -> None:
    run.rank_check(architectures=4)
    whole = contents(run)
    scores = run.folder.rank_check / "scores.jsonl"
    kept = whole["scores.jsonl"].splitlines(keepends=True)
    scores.write_bytes(b"".join(kept[:lines]) + (kept[lines][:30] if lines < len(kept) else b""))
    (run.folder.rank_check / "retrain.json").unlink()
    with pytest.warns(NaspipeWarning, match="is incomplete") if lines < 24 else contextlib.nullcontext():
        run.rank_check(architectures=4)
    assert contents(run) == whole


def test_more_architectures_and_seeds_add_to_what_there_is(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.rank_check(architectures=3)
    before = contents(run)
    run.rank_check(architectures=3, seeds=2)
    run.rank_check(architectures=4)
    after = contents(run)
    for name in ("scores.jsonl", "truths-retrain.jsonl"):
        assert after[name].startswith(before[name])
    assert len(after["scores.jsonl"].splitlines()) < 15 + 20 + 3 + 4

    def fail(*arguments: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(rank_check, "_evaluation", fail)
    monkeypatch.setattr(rank_truths, "retrain", fail)
    run.rank_check(architectures=3)
    assert contents(run)["retrain.json"] == before["retrain.json"]


def test_what_comes_of_a_check_does_not_depend_on_checks_before_it(run: Run, trained: Path, tmp_path: Path) -> None:
    run.rank_check("test_rank_check:Table")
    run.rank_check(architectures=5)
    run.rank_check(architectures=3)
    fresh = Run.open(shutil.copytree(trained, tmp_path / "fresh"))
    fresh.rank_check(architectures=3)
    assert contents(fresh)["retrain.json"] == contents(run)["retrain.json"]


def test_the_first_training_is_that_of_naspipe_retrain_from_fresh_weights(trained: Path, tmp_path: Path) -> None:
    run = Run.open(shutil.copytree(trained, tmp_path / "best")).search().retrain()
    truth = Retraining(run, run.components.objectives[0])
    assert truth.value(run.best_architecture(), 0) == run.best_metrics()["validation"]["accuracy"]
    assert len({truth.value(run.best_architecture(), seed) for seed in range(4)}) > 1


def test_the_test_split_is_never_touched(tmp_path: Path) -> None:
    class Untouched:
        def __len__(self) -> int:
            return 12

        def batch(self, indices: Any, key: int) -> Any:
            raise AssertionError("the test split was touched")

    class Guarded(TinyTask):
        def load(self, seed: int) -> Splits:
            splits = super().load(seed)
            return Splits(splits.train, splits.validation, Untouched())

    naspipe.register_task("guarded-by-test_rank_check")(Guarded)
    config = {**CONFIG, "task": {"name": "guarded-by-test_rank_check"}}
    record = Run.create(config, tmp_path / "guarded").train().rank_check(architectures=3)
    assert all(line.reason is None for line in record.architectures)


def test_a_table_is_checked_on_all_that_is_scored_and_by_default_on_the_whole_of_a_small_space(run: Run) -> None:
    record = run.rank_check("test_rank_check:Table")
    assert (record.pool, record.against, record.truth) == (64, "test_rank_check:Table", "Table")
    assert len({line.text for line in record.architectures}) == 64
    assert [line.rank for line in record.architectures] == list(range(1, 65))
    assert sum(line.untrained is not None for line in record.architectures) == UNTRAINED
    assert set(contents(run)) == {
        "scores.jsonl", "truths-test_rank_check-Table.jsonl", "test_rank_check-Table.json",
    }  # fmt: skip


def test_the_table_of_nasbench201_is_a_truth_of_its_space(tmp_path: Path) -> None:
    config = {
        **CONFIG, "space": {"name": "nasbench201", "channels": 4}, "task": {"name": "digits"},
        "training": {"subnets": 5},
    }  # fmt: skip
    run = Run.create(config, tmp_path / "cells").train()
    record = run.rank_check("nasbench201", 5)
    assert (record.pool, record.truth_direction) == (5, "maximize")
    for line in record.architectures:
        assert line.truths == [true_accuracy(Architecture(line.architecture))]


def test_a_registered_objective_is_a_truth(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.objectives, "_decorated", {})
    registry.objectives.register("my_table")(Table)
    assert len(run.rank_check("my_table", 5).architectures) == 5
    assert (run.folder.rank_check / "my_table.json").is_file()


def test_architectures_without_a_truth_are_left_out_and_said(run: Run) -> None:
    record = run.rank_check("test_rank_check:Holes", 60)
    failed = [line for line in record.architectures if line.truth is None]
    assert len(failed) == sum(line.architecture["op0"] == "skip" for line in record.architectures) > 0
    assert all("no entry for a skip" in str(line.reason) for line in failed)
    assert f"{len(failed)} of 60 architectures have no truth. The first reason: " in record.warnings[-1]


def test_a_check_in_which_nearly_everything_fails_ends_with_the_first_reason(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evaluation(run: Run, weights: str) -> Callable[[Architecture], Mapping[str, object]]:
        return lambda architecture: {"accuracy": float("nan")}

    monkeypatch.setattr(rank_check, "_evaluation", evaluation)
    with pytest.raises(RunError, match=r"needs 3 architectures, but only 0 of 5 .*objective 'accuracy' must be finite"):
        run.rank_check("test_rank_check:Table", 5)


def test_a_supernet_that_has_learned_nothing_is_said_to_be_near_chance(tmp_path: Path) -> None:
    training = {**TINY["training"], "subnets": 1, "optimizer": {"name": "SGD", "lr": 1e-9}}
    run = Run.create({**CONFIG, "training": training}, tmp_path / "chance").train()
    record = run.rank_check("test_rank_check:Table")
    assert any("may be near chance" in warning for warning in record.warnings)
    assert record.gain.p_value > 0.05
    before = [line for line in record.architectures if line.untrained is not None]
    assert [line.score for line in before] == [line.untrained for line in before]


def test_untrained_scores_are_those_of_the_weights_that_training_began_with(run: Run) -> None:
    record = run.rank_check(architectures=3)
    assert [line.score for line in record.architectures] != [line.untrained for line in record.architectures]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"against": "retrian"}, "but got 'retrian'. Did you mean 'retrain'\\? Known: retrain"),
    ({"against": "conftest:TinyTask"}, "must be a subclass of naspipe.Measure"),
    ({"architectures": 2}, "--architectures must be at least 3, but is 2"),
    ({"architectures": 65}, "a rank check of 65 architectures needs as many, but the space has only 64"),
    ({"seeds": 0}, "--seeds must be at least 1, but is 0"),
    ({"against": "test_rank_check:Table", "seeds": 2}, "--seeds must be 1, for test_rank_check:Table gives the same"),
    (
        {"against": "nasbench201"},
        "nasbench201 gives none: .*the space must be nasbench201 with tied: true, but .* op0, op1",
    ),
    ({"against": "test_rank_check:Sized"}, "Sized gives none: .*a measure that needs the module cannot be used here"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_bad_input_is_refused_before_anything_is_computed(
    run: Run, arguments: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_check, "_evaluation", None)
    with pytest.raises(InputError, match=message) as caught:
        run.rank_check(**arguments)
    assert caught.value.exit_code == 2
    assert not run.folder.rank_check.exists()


def test_an_untrained_run_or_one_without_a_measured_objective_is_refused(tmp_path: Path) -> None:
    run = Run.create(CONFIG, tmp_path / "untrained")
    with pytest.raises(RunFolderError, match="has no trained supernet yet"):
        run.rank_check()
    config = {**CONFIG, "search": {**TINY["search"], "objectives": ["parameters"]}}
    run = Run.create(config, tmp_path / "size").train()
    with pytest.raises(InputError, match=r"objectives are \['parameters'\]. This task measures .*accuracy"):
        run.rank_check()


def test_a_damaged_line_is_refused_and_says_what_to_do(run: Run) -> None:
    run.rank_check(architectures=3)
    scores = run.folder.rank_check / "scores.jsonl"
    scores.write_text(scores.read_text().replace('"conv1"', '"conv9"', 1))
    with pytest.raises(RunFolderError, match=r"scores.jsonl, line \d+ .*conv9.* Delete it and every line below"):
        run.rank_check(architectures=3)


def test_pools_are_distinct_valid_and_grow_from_each_other() -> None:
    class Ruled(TinySpace):
        def is_valid(self, architecture: Architecture) -> bool:
            return architecture["op0"] != architecture["op1"]

    space = Ruled()
    pools = [distinct_architectures(space, keyed_random(7, "pool"), count) for count in (5, 30, 1_000)]
    assert [len(pool) for pool in pools] == [5, 30, 48]
    assert pools[1][:5] == pools[0]
    assert pools[2][:30] == pools[1]
    assert len(set(pools[2])) == 48
    assert all(space.is_valid(architecture) for architecture in pools[2])


def test_the_report_shows_every_check(run: Run) -> None:
    assert "Ranking" not in run.report().read_text()
    run.rank_check(architectures=3, seeds=2)
    run.rank_check("test_rank_check:Table", 20)
    page = run.report().read_text()
    assert page.count('id="ranking-') == 2
    for text in ('id="ranking-retrain"', "the mean of 2 trainings", "Kendall&#x27;s tau", "small: 3 architectures"):
        assert text in page
    path = RankFiles(run.folder.rank_check).result("retrain")
    path.write_text("{}")
    assert "cannot be shown" in run.report().read_text()


def test_the_command_prints_the_order_and_how_well_it_agrees(command: Command, run: Run) -> None:
    code, text, errors = command("rank-check", run.path, "--architectures", 4, "--seeds", 2)
    assert (code, errors) == (0, "")
    lines = text.splitlines()
    head = next(index for index, line in enumerate(lines) if line.startswith("rank "))
    assert [line.split()[0] for line in lines[head + 1 : head + 5]] == ["1", "7", "14", "20"]
    assert "mean true accuracy" in lines[head]
    assert any(line.startswith("Kendall   ") for line in lines)
    assert "Warning: The sample is small" in text
    assert lines[-1] == f"Report    {run.folder.report}"
    assert command("rank-check", run.path, "--architectures", 2)[0] == 2


def test_an_interrupt_of_the_command_says_how_to_go_on(
    command: Command, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rank_truths, "retrain", interrupt)
    code, _, errors = command("rank-check", run.path, "--architectures", 3)
    assert code == 130
    assert f"To resume: naspipe rank-check {run.path} --against retrain --seeds 1 --architectures 3" in errors
