"""A run from end to end, its folder, and what a second process makes of it."""

from __future__ import annotations

import json
import re
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TINY, TinySpace, TinyTask
from forked import call_in_fork
from safetensors.torch import load_file
from torch import nn

import naspipe
from naspipe import Run, Splits, Supernet
from naspipe.errors import ConfigError, InputError, RunError, RunFolderError, SearchError, TrainingError
from naspipe.files import digest_tensors, read_lines
from naspipe.preflight.run_check import check_run
from naspipe.search.evaluation import Evaluator
from naspipe.supernet import Block
from naspipe.training.progress import Progress


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return naspipe.run(TINY, tmp_path_factory.mktemp("runs") / "one")


def test_a_run_leaves_everything_it_promises(finished: Run) -> None:
    (row,) = (row.name for row in finished.rows())
    names = {str(path.relative_to(finished.path)) for path in finished.path.rglob("*") if path.is_file()}
    assert names == {
        "config.yaml", "environment.json", "train/metrics.jsonl", "train/settings.json", "train/supernet.safetensors",
        "search/trials.jsonl", "search/settings.json", "search/study.journal",
        "best/architecture.json", "best/epochs.jsonl",
        "best/model.safetensors", "best/metrics.json", "report.html", ".lock",
        "retrain/settings.json", f"retrain/{row}/epochs.jsonl", f"retrain/{row}/model.safetensors",
        f"retrain/{row}/metrics.json",
    }  # fmt: skip
    metrics = list(read_lines(finished.folder.training.metrics))
    assert [set(line) for line in metrics] == [{"index", "architecture", "loss", "lr"}] * 30
    assert [line["index"] for line in metrics] == list(range(30))
    assert len(finished.trials()) == 10
    environment = json.loads(finished.folder.environment.read_text())
    assert environment["seed"] == 3
    assert environment["threads"] == 1
    assert environment["packages"]["torch"] == torch.__version__.partition("+")[0] or torch.__version__
    assert environment["cpu"]["capability"]


def test_the_best_model_is_an_ordinary_module_with_the_scores_it_claims(finished: Run) -> None:
    model = finished.best()
    assert not model.training
    assert not [module for module in model.modules() if isinstance(module, Block)]
    metrics = finished.best_metrics()
    test = TinyTask().load(3).test
    batch = test.batch(range(len(test)), 0)
    with torch.no_grad():
        correct = (model(batch.inputs).argmax(1) == batch.targets).float().mean().item()
    assert correct == pytest.approx(metrics["test"]["accuracy"])
    best = max(trial.metrics["accuracy"] for trial in finished.trials())
    record = json.loads(finished.folder.best_architecture.read_text())
    assert record["metrics"]["accuracy"] == best
    assert finished.best_architecture() == finished.trials()[record["trial"]].architecture


def digest_of_run(config: Path, out: Path) -> str:
    return naspipe.run(str(config), str(out)).digest


def test_the_same_config_gives_the_same_run_in_another_process(finished: Run, tmp_path: Path, forks: None) -> None:
    out = tmp_path / "two"
    assert call_in_fork(digest_of_run, finished.folder.config, out) == finished.digest
    for path in ("train/metrics.jsonl", "train/settings.json", "search/trials.jsonl", "search/settings.json",
                 "best/architecture.json", "best/metrics.json", "config.yaml"):  # fmt: skip
        assert (out / path).read_bytes() == (finished.path / path).read_bytes(), path
    for path in ("train/supernet.safetensors", "best/model.safetensors"):
        one, two = load_file(out / path), load_file(finished.path / path)
        assert digest_tensors(one) == digest_tensors(two)


def test_phases_may_run_one_by_one_from_the_folder(finished: Run, tmp_path: Path) -> None:
    config = {**TINY, "retrain": {**TINY["retrain"], "init": "finetune"}}
    path = Run.create(config, tmp_path / "steps").train().path
    assert Run.open(path).digest == finished.digest
    Run.open(path).search()
    assert Run.open(path).trials() == finished.trials()
    assert Run.open(path).retrain().best_metrics() != finished.best_metrics()


def test_a_search_that_was_broken_off_goes_on(finished: Run, tmp_path: Path) -> None:
    path = Run.create(TINY, tmp_path / "broken").train().path
    trials = path / "search" / "trials.jsonl"
    trials.parent.mkdir()
    whole = finished.folder.trials.read_text()
    trials.write_text("".join(whole.splitlines(keepends=True)[:4]))
    seen: list[Progress] = []
    Run.open(path, watch=seen.append).search()
    assert trials.read_text() == whole
    assert len(seen) == 6


def test_evaluating_another_subnet_in_between_changes_no_digit_and_no_weight(finished: Run) -> None:
    supernet = finished.supernet()
    before = digest_tensors(supernet.state_dict())
    components = finished.components
    evaluator = Evaluator(supernet, components.task, finished.splits, finished.config)
    a, b = (trial.architecture for trial in finished.trials()[:2])
    first = evaluator.evaluate(a)
    evaluator.evaluate(b)
    assert evaluator.evaluate(a) == first
    assert digest_tensors(supernet.state_dict()) == before


def test_the_search_sees_no_test_sample_and_the_test_is_touched_once(tmp_path: Path) -> None:
    touched: list[str] = []

    class Watched(TinyTask):
        def load(self, seed: int) -> Splits:
            splits = super().load(seed)

            class Watch:
                def __len__(self) -> int:
                    return len(splits.test)

                def batch(self, indices: Any, key: int) -> Any:
                    touched.append(phase)
                    return splits.test.batch(indices, key)

            return Splits(splits.train, splits.validation, Watch())

    phase = "train"
    naspipe.register_task("watched-by-test_run")(Watched)
    run = Run.create({**TINY, "task": {"name": "watched-by-test_run"}}, tmp_path / "watched")
    run.train()
    phase = "search"
    run.search()
    phase = "retrain"
    run.retrain()
    assert touched == ["retrain"]


def test_a_run_never_overwrites_another(finished: Run) -> None:
    for again, message in (
        (lambda: Run.create(TINY, finished.path), "never overwrites another, but .*one exists"),
        (finished.train, "has a trained supernet already"),
        (finished.search, "has a finished search already"),
        (finished.retrain, "has a retrained model already"),
    ):
        with pytest.raises(RunFolderError, match=message):
            again()


def test_a_phase_out_of_order_says_which_command_comes_first(tmp_path: Path) -> None:
    run = Run.create(TINY, tmp_path / "new")
    for early, message in (
        (run.search, "no trained supernet yet.*naspipe train"),
        (run.retrain, "no best architecture yet.*naspipe search"),
        (run.best, "no retrained model yet.*naspipe retrain"),
        (lambda: run.digest, "no trained supernet yet"),
    ):
        with pytest.raises(RunFolderError, match=message):
            early()
    with pytest.raises(RunFolderError, match="is no run folder"):
        Run.open(tmp_path)


def test_without_a_folder_a_new_one_is_made_below_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = Run.create(TINY), Run.create(TINY)
    assert one.path != two.path
    assert one.path.parent == Path("runs")
    assert one.path.name.startswith("TinySpace-TinyTask-")


def test_a_wrong_config_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown key"):
        naspipe.run({**TINY, "sed": 1}, tmp_path / "out")

    class NoData(TinyTask):
        def load(self, seed: int) -> Splits:
            raise InputError("the data is missing")

    naspipe.register_task("no-data-by-test_run")(NoData)
    with pytest.raises(InputError, match="the data is missing"):
        naspipe.run({**TINY, "task": {"name": "no-data-by-test_run"}}, tmp_path / "out")

    class NoBlocks(TinySpace):
        def blocks(self) -> Any:
            yield nn.Linear(1, 1)
            raise RuntimeError("no second block")

    naspipe.register_space("no-blocks-by-test_run")(NoBlocks)
    with pytest.raises(InputError, match=r"(?s)NoBlocks.blocks\(\): building block 1 failed:.*no second block"):
        naspipe.run({**TINY, "space": {"name": "no-blocks-by-test_run"}}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_training_that_fails_keeps_what_it_logged(tmp_path: Path) -> None:
    class Late(TinyTask):
        calls = 0

        def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
            Late.calls += 1
            return super().loss(outputs, targets) * (float("nan") if Late.calls > 5 else 1)

    naspipe.register_task("late-by-test_run")(Late)
    run = Run.create({**TINY, "task": {"name": "late-by-test_run"}}, tmp_path / "late")
    Late.calls = 0  # The checks before have called it too.
    with pytest.raises(TrainingError, match=r"subnet 5 .*must be finite, but is nan"):
        run.train()
    assert len(list(read_lines(run.folder.training.metrics))) == 5
    for phase in (run.train, run.search):
        with pytest.raises(RunFolderError, match="log of a training that was interrupted.*naspipe resume"):
            phase()
    assert run.report().exists()


def test_a_search_in_which_every_trial_fails_ends_with_the_first_reason(tmp_path: Path) -> None:
    class Nothing(TinyTask):
        def metrics(self, totals: Any) -> Any:
            return {"accuracy": None}

    naspipe.register_task("nothing-by-test_run")(Nothing)
    run = Run.create({**TINY, "task": {"name": "nothing-by-test_run"}}, tmp_path / "none").train()
    with pytest.raises(SearchError, match="all 10 trials .*must be a number, but is None"):
        run.search()
    assert len(run.trials()) == 10
    assert run.report().exists()


def test_a_model_with_state_outside_its_state_dict_is_not_claimed(tmp_path: Path) -> None:
    class Hidden(nn.Module):
        """Remembers something that it does not save."""

        def __init__(self) -> None:
            super().__init__()
            self.shift = 0.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.shift += 1.0
            return x + self.shift * torch.arange(3.0)

    class HiddenSpace(TinySpace):
        def blocks(self) -> Any:
            yield from super().blocks()
            yield Hidden()

    naspipe.register_space("hidden-by-test_run")(HiddenSpace)
    run = Run.create({**TINY, "space": {"name": "hidden-by-test_run"}}, tmp_path / "hidden")
    run.train().search()
    with pytest.raises(RunError, match="must evaluate as it did when trained"):
        run.retrain()
    assert not run.folder.best_metrics.exists()


def test_weights_of_another_space_are_refused(finished: Run, tmp_path: Path) -> None:
    run = Run.create({**TINY, "space": {"name": "conftest:TinySpace", "width": 6}}, tmp_path / "other")
    run.folder.supernet.parent.mkdir()
    run.folder.supernet.write_bytes(finished.folder.supernet.read_bytes())
    with pytest.raises(RunFolderError, match="must fit the run's search space") as caught:
        run.search()
    lines = str(caught.value).splitlines()
    assert len(lines) == 5
    assert lines[1].startswith("  size mismatch for 0.module.weight")
    assert re.fullmatch(r"  and \d+ more", lines[4])
    run.folder.supernet.write_bytes(b"damaged")
    with pytest.raises(RunFolderError, match="cannot be read"):
        run.supernet()


def test_two_objectives_pick_the_front_by_the_first(tmp_path: Path) -> None:
    config = {**TINY, "search": {**TINY["search"], "objectives": ["parameters", "loss"]}}
    run = naspipe.run(config, tmp_path / "two")
    best = json.loads(run.folder.best_architecture.read_text())
    assert best["metrics"]["parameters"] == min(t.metrics["parameters"] for t in run.trials())


def test_the_report_is_one_page_that_needs_nothing_else(finished: Run) -> None:
    page = finished.folder.report.read_text()
    assert page.count("<script src=") == 0
    assert page.count("<link") == 0
    for name in ("training", "options", "search-accuracy", "architecture"):
        assert f'id="{name}"' in page
    assert finished.components.space.format(finished.best_architecture()) in page


class BegunError(Exception):
    """Ends what begins."""


def test_a_training_in_processes_of_its_own_holds_no_supernet_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[weakref.ref[Supernet]] = []

    def check(*arguments: Any) -> Supernet:
        supernet = check_run(*arguments)
        checked.append(weakref.ref(supernet))
        return supernet

    def begin(*_: Any) -> None:
        assert checked[0]() is None
        raise BegunError

    monkeypatch.setattr("naspipe.runs.run.check_run", check)
    monkeypatch.setattr("naspipe.training.distributed.processes.train_in_processes", begin)
    run = Run.create({**TINY, "executor": {"name": "csp", "stages": 2, "transport": "distributed"}}, tmp_path / "run")
    with pytest.raises(BegunError):
        run.train()


def test_phases_share_the_trained_supernet_and_let_it_go_when_nothing_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {**TINY, "retrain": {**TINY["retrain"], "processes": 2, "init": "finetune"}}
    run = Run.create(config, tmp_path / "run").train().search()
    shared = weakref.ref(run.shared_supernet())
    assert run.shared_supernet() is shared()
    assert run.supernet() is not shared()

    def begin(*_: Any) -> None:
        assert shared() is None
        raise BegunError

    monkeypatch.setattr("naspipe.runs.retrain_processes.retrain_in_processes", begin)
    with pytest.raises(BegunError):
        run.retrain()


def test_the_settings_of_a_training_name_its_contract(tmp_path: Path) -> None:
    for name, contract in (("csp", "sequential"), ("pipedream", "stale(1)")):
        executor = {"name": name, "stages": 2}
        training = {"subnets": 4, "batch_size": 10}
        run = Run.create({**TINY, "training": training, "executor": executor}, tmp_path / name).train()
        assert json.loads(run.folder.training.settings.read_text())["contract"] == contract
