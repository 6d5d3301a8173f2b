"""Retraining: the rows of its table, the one that wins, and what an interrupt or a dead process leaves."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TINY, Command, TinySpace, TinyTask
from torch import Tensor, distributed, nn

import naspipe
from naspipe import Batch, Run, Splits, TensorDataset
from naspipe.errors import ConfigError, InputError, NaspipeWarning
from naspipe.files import digest_tensors, load_tensors
from naspipe.records import RowScores
from naspipe.results.retraining_rows import choose_row, row_folder, seed_of, spreads
from naspipe.runs import retrain_phase
from naspipe.runs.export import export_model
from naspipe.search.objective import Objective
from naspipe.supernet.determinism import deterministic
from naspipe.training.context import as_config
from naspipe.training.distributed import requirements
from naspipe.training.distributed.data_parallel import DataParallelProcess
from naspipe.training.progress import Progress, Watch, ignore
from naspipe.training.standalone import SINGLE_PROCESS, EpochRecord, SingleProcess, retrain

HERE = Path(__file__).parent
ALL = ["scratch", "inherit", "finetune"]


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run.create(TINY, tmp_path_factory.mktemp("runs") / "one").train().search()


def fork(run: Run, path: Path, watch: Watch = ignore, **settings: Any) -> Run:
    """Return a copy of a run's folder with other settings of the retraining."""
    shutil.copytree(run.path, path)
    data = run.config.model_dump(mode="json")
    data["retrain"].update(settings)
    (path / "config.yaml").write_text(as_config(data).to_yaml())
    return Run.open(path, watch)


def files(run: Run, *folders: str) -> dict[str, str | bytes]:
    """Return what the files of a retraining hold; of weights a digest."""
    found = {}
    for folder in folders or ("retrain", "best"):
        for path in sorted((run.path / folder).rglob("*.*")):
            weights = path.suffix == ".safetensors"
            found[str(path.relative_to(run.path))] = (
                digest_tensors(load_tensors(path)) if weights else path.read_bytes()
            )
    return found


@pytest.fixture(scope="module")
def whole(searched: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A table of two architectures, three starts and two seeds."""
    return fork(searched, tmp_path_factory.mktemp("runs") / "whole", init=ALL, seeds=2, best=2).retrain()


# Rows


def test_a_row_is_an_architecture_a_start_and_a_seed_and_inherit_needs_no_seed(whole: Run) -> None:
    first, second = (row.trial for row in whole.rows() if row.init == "inherit")
    assert [row.name for row in whole.rows()] == [
        f"{trial}-{rest}"
        for trial in (first, second)
        for rest in ("scratch-0", "scratch-1", "inherit-0", "finetune-0", "finetune-1")
    ]
    assert first == whole.folder.best_trial().trial
    assert [(row.trial, row.init, row.seed) for row in whole.retrained()] == [
        (row.trial, row.init, row.seed) for row in whole.rows()
    ]
    for row in whole.rows():
        names = {path.name for path in row_folder(whole.folder, row).root.iterdir()}
        assert names == {"model.safetensors", "metrics.json", *(["epochs.jsonl"] if row.trains else [])}
        assert len(list(row_folder(whole.folder, row).logged())) == (2 if row.trains else 0)


def test_one_seed_gives_the_first_of_several_bit_for_bit(searched: Run, whole: Run, tmp_path: Path) -> None:
    alone = fork(searched, tmp_path / "alone", init=["finetune", "scratch"]).retrain()
    found, expected = files(alone, "retrain"), files(whole, "retrain")
    assert len(found) == 7
    assert found == {name: expected[name] for name in found}
    # The seeds differ, and so do the rows.
    assert len({text for name, text in expected.items() if "scratch" in name and name.endswith("safetensors")}) == 4


def test_a_scratch_row_is_the_ordinary_training_of_fresh_weights(whole: Run) -> None:
    """And a finetune row that of the supernet's: by the public function, with the row's seed."""
    components, settings = whole.components, whole.config.retrain
    for row in (row for row in whole.rows() if row.trains):
        seed = seed_of(3, row.seed)
        fresh = naspipe.supernet.supernet.build_subnet(components.space, row.architecture, seed)
        module = fresh if row.init == "scratch" else whole.supernet().extract(row.architecture)
        with deterministic(1, "cpu"):
            retrain(module, components.task, whole.splits.train, settings, seed, "cpu", lambda record: None)
        saved = load_tensors(row_folder(whole.folder, row).model)
        assert digest_tensors(module.state_dict()) == digest_tensors(saved)


def test_an_inherited_row_has_the_supernets_weights_and_the_scores_of_the_search(whole: Run) -> None:
    trials = {trial.index: trial for trial in whole.trials()}
    rows = [row for row in whole.rows() if row.init == "inherit"]
    assert len(rows) == 2
    for row in rows:
        scores = row_folder(whole.folder, row).scores()
        metrics = trials[row.trial].metrics
        assert scores.validation == {name: metrics[name] for name in ("accuracy", "loss")}
        subnet = dict(whole.supernet().extract(row.architecture).named_parameters())
        saved = load_tensors(row_folder(whole.folder, row).model)
        assert digest_tensors({name: saved[name] for name in subnet}) == digest_tensors(subnet)


def test_more_architectures_than_the_search_has_are_warned_of(searched: Run, tmp_path: Path) -> None:
    with pytest.warns(NaspipeWarning, match="retrain.best = 11, but the search evaluates 10 architectures only"):
        Run.create({**TINY, "retrain": {**TINY["retrain"], "best": 11}}, tmp_path / "new")
    run = fork(searched, tmp_path / "run", init="inherit", best=11)
    complete = len([trial for trial in searched.trials() if trial.reason is None])
    with pytest.warns(NaspipeWarning, match=f"retrain.best = 11, but the search has {complete} architectures to offer"):
        run.retrain()
    assert len({row.trial for row in run.retrained()}) == complete
    assert run.best_metrics()["validation"]["accuracy"] == max(t.metrics["accuracy"] for t in searched.trials())


def test_settings_without_an_effect_are_warned_of(tmp_path: Path) -> None:
    with pytest.warns(NaspipeWarning, match="retrain.seeds = 2 has no effect: retrain.init is 'inherit' alone"):
        Run.create({**TINY, "retrain": {**TINY["retrain"], "init": ["inherit"], "seeds": 2}}, tmp_path / "new")


# The winner


def score(trial: int, test: float, **validation: float) -> RowScores:
    return RowScores(
        text=f"t{trial}", trial=trial, architecture={}, init="scratch", seed=0, validation=validation,
        test={"accuracy": test, "loss": 1 - test}, parameters=3,
    )  # fmt: skip


def test_validation_decides_and_never_the_test() -> None:
    rows = [score(1, 0.9, accuracy=0.5, loss=0.3), score(2, 0.1, accuracy=0.7, loss=0.9)]
    accuracy, parameters = Objective("accuracy", "maximize"), Objective("parameters", "minimize")
    assert choose_row(rows, [accuracy]) == (rows[1], "accuracy")
    # The first objective that the task measures; else the loss.
    assert choose_row(rows, [parameters, accuracy]) == (rows[1], "accuracy")
    assert choose_row(rows, [parameters]) == (rows[0], "loss")
    # Of equal rows the first; one without a finite value loses; where nothing decides, the search's choice stands.
    assert choose_row([rows[1], score(3, 1.0, accuracy=0.7)], [accuracy]) == (rows[1], "accuracy")
    assert choose_row([score(3, 1.0, loss=0.0), rows[0]], [accuracy]) == (rows[0], "accuracy")
    assert choose_row([score(3, 0.0), score(4, 1.0)], [accuracy]) == (score(3, 0.0), None)


def test_the_winner_is_what_everything_that_reads_best_gets(whole: Run, tmp_path: Path) -> None:
    run = Run.open(shutil.copytree(whole.path, tmp_path / "run"))
    run.folder.best_metrics.unlink()
    # Whichever row won: another one, of the architecture that the search did not choose, is made to win.
    winner = next(row for row in run.rows() if row.init == "finetune" and row.trial != run.folder.best_trial().trial)
    own = row_folder(run.folder, winner)
    scores = own.scores().model_dump()
    scores["validation"]["accuracy"] = 2.0
    own.metrics.write_text(json.dumps(scores))
    run.retrain()
    assert run.best_metrics() == {**scores, "chosen_by": "accuracy"}
    assert run.retrained_architecture() == winner.architecture != run.best_architecture()
    assert digest_tensors(run.best().state_dict()) == digest_tensors(load_tensors(own.model))
    assert not run.best().training
    assert run.folder.retraining_metrics.read_bytes() == own.epochs.read_bytes()
    exported = export_model(run, out=tmp_path / "model.safetensors")
    assert exported.text == scores["text"]
    page, chosen = run.report().read_text(), run.folder.best_trial()
    assert f"that of trial {winner.trial} is best on the validation split, by accuracy" in page
    assert f"that of trial {chosen.trial}, {chosen.text}" in page
    assert f"found in trial {winner.trial}." in page


def test_a_row_that_was_not_trained_may_win_and_has_no_epochs(searched: Run, tmp_path: Path) -> None:
    run = fork(searched, tmp_path / "run", init="inherit").retrain()
    assert not run.folder.retraining_metrics.exists()
    assert run.best_metrics()["init"] == "inherit"
    assert "the supernet&#x27;s weights as they are" in run.report().read_text()


def test_the_test_split_is_touched_once_a_row_after_its_training(tmp_path: Path) -> None:
    touched: list[str] = []

    class Watched(TinyTask):
        def load(self, seed: int) -> Splits:
            splits = super().load(seed)

            class Watch:
                def __len__(self) -> int:
                    return len(splits.test)

                def batch(self, indices: Any, key: int) -> Any:
                    touched.extend(map(str, indices))
                    return splits.test.batch(indices, key)

            return Splits(splits.train, splits.validation, Watch())

    def watch(progress: Progress) -> None:
        touched.append(progress.phase)

    naspipe.register_task("watched-by-test_retraining")(Watched)
    settings = {**TINY["retrain"], "init": ["scratch", "inherit"], "seeds": 2}
    run = Run.create(
        {**TINY, "task": {"name": "watched-by-test_retraining"}, "retrain": settings}, tmp_path / "run", watch
    )
    run.train().search()
    touched.clear()
    run.retrain()
    samples = [str(index) for index in range(len(run.splits.test))]
    trained = ["retrain", "retrain", *samples]
    assert touched == [*trained, *trained, "retrain", *samples]


def test_means_and_deviations_are_those_of_the_seeds(whole: Run) -> None:
    groups = spreads(whole.retrained())
    assert [(len(group.rows), group.rows[0].init) for group in groups] == [
        (2, "scratch"),
        (1, "inherit"),
        (2, "finetune"),
    ] * 2
    one, other = (row.test["loss"] for row in groups[0].rows)
    mean, deviation = groups[0].mean("test", "loss") or (0.0, 0.0)
    assert mean == pytest.approx((one + other) / 2)
    assert deviation == pytest.approx(abs(one - other) / 2**0.5)
    assert groups[1].mean("test", "loss") == (groups[1].rows[0].test["loss"], None)
    assert groups[0].mean("test", "nothing") is None


# Interrupts


@pytest.mark.parametrize("last", [*range(1, 10), "winner"])
def test_a_retraining_that_was_broken_off_anywhere_goes_on_and_gives_the_same_files(
    searched: Run, whole: Run, tmp_path: Path, last: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Progress] = []

    def watch(progress: Progress) -> None:
        seen.append(progress)
        if len(seen) == last:
            raise KeyboardInterrupt

    run = fork(searched, tmp_path / "run", watch, init=ALL, seeds=2)
    with monkeypatch.context() as patch:
        if last == "winner":
            patch.setattr(retrain_phase, "write_json", interrupt_at_best(retrain_phase.write_json))
        with pytest.raises(KeyboardInterrupt, match="Interrupted. To resume: naspipe retrain "):
            run.retrain()
    assert not run.folder.best_metrics.exists()
    finished = [row.name for row in run.rows() if row_folder(run.folder, row).metrics.exists()]
    stamps = {name: (run.folder.retraining / name / "model.safetensors").stat().st_mtime_ns for name in finished}
    again = Run.open(run.path, seen.append)
    again.retrain()
    expected = files(whole, "retrain")
    found = files(again, "retrain")
    assert found == {name: text for name, text in expected.items() if name in found}
    assert len(found) == 15
    for name, stamp in stamps.items():
        assert (run.folder.retraining / name / "model.safetensors").stat().st_mtime_ns == stamp
    best, metric = choose_row(again.retrained(), again.components.objectives)
    assert again.best_metrics() == {**best.model_dump(), "chosen_by": metric}
    assert seen[-1].done == seen[-1].total == 9 or last == "winner"


def test_a_table_may_grow_by_seeds_and_starts_but_its_rows_stay_alike(
    searched: Run, whole: Run, tmp_path: Path
) -> None:
    seen: list[Progress] = []
    run = fork(searched, tmp_path / "run").retrain()
    run.folder.best_metrics.unlink()
    grown = fork(run, tmp_path / "grown", seen.append, init=ALL, seeds=2, best=2).retrain()
    assert files(grown, "retrain") == files(whole, "retrain")
    # The first row, of two epochs, was there.
    assert [progress.done for progress in seen] == list(range(3, 19))
    other = fork(run, tmp_path / "other", epochs=3)
    with pytest.raises(
        naspipe.errors.RunFolderError, match=r"retrain.epochs was 2 and is 3. Undo .* or delete .*retrain to"
    ):
        other.retrain()
    assert files(other, "retrain") == files(run, "retrain")


def test_rows_of_architectures_that_stay_among_the_best_are_kept_when_the_search_is_extended(
    whole: Run, tmp_path: Path
) -> None:
    # The name under which the search wrote its journal.
    run = Run.open(shutil.copytree(whole.path, tmp_path / "one"))
    models = {row.name: row_folder(run.folder, row).model for row in run.rows()}
    stamps = {name: path.stat().st_mtime_ns for name, path in models.items()}
    again = Run.open(run.search(extend=2).path).retrain()
    kept = [row.name for row in again.rows() if row.name in stamps]
    assert all(models[name].stat().st_mtime_ns == stamps[name] for name in kept)
    assert len(again.retrained()) == 10
    assert len(again.trials()) == 12


def interrupt_at_best(write: Any) -> Any:
    def interrupt(path: Path, data: Any) -> None:
        if path.parent.name == "best":
            raise KeyboardInterrupt
        write(path, data)

    return interrupt


# What people see


def test_several_rows_are_printed_as_a_table_and_shown_in_the_report(
    searched: Run, tmp_path: Path, command: Command
) -> None:
    run = fork(searched, tmp_path / "run", init=["scratch", "inherit"], seeds=2)
    code, text, errors = command("retrain", run.path)
    assert (code, errors) == (0, "")
    lines = text.splitlines()
    head = next(place for place, line in enumerate(lines) if line.startswith("trial"))
    assert lines[head].split()[:3] == ["trial", "start", "seed"]
    rows = run.retrained()
    for row, line in zip(rows, lines[head + 1 : head + 4], strict=True):
        assert line.split()[:5] == [
            str(row.trial), row.init, str(row.seed), f"{row.validation['accuracy']:.4f}", f"{row.test['accuracy']:.4f}",
        ]  # fmt: skip
    assert sum(line.endswith(" best") for line in lines) == 1
    mean, deviation = spreads(rows)[0].mean("validation", "accuracy") or (0.0, 0.0)
    assert f"{rows[0].trial}      scratch  2      {mean:.4f} +- {deviation:.4f}" in text
    assert "The best row is that of the best validation accuracy; the test split decides nothing." in text
    assert f"Best architecture  {run.best_metrics()['text']}" in text
    page = run.folder.report.read_text()
    assert 'id="retraining"' in page
    assert "3 of 3 rows finished" in page
    assert "scratch: fresh weights; inherit: the supernet&#x27;s weights as they are" in page
    assert "Mean and sample standard deviation over the seeds" in page


def test_one_row_is_printed_as_before(searched: Run, tmp_path: Path, command: Command) -> None:
    code, text, _ = command("retrain", fork(searched, tmp_path / "run").path)
    assert code == 0
    assert "trial  start" not in text
    assert "Best in the search" not in text


def test_a_report_shows_the_rows_of_a_retraining_that_is_not_finished(whole: Run, tmp_path: Path) -> None:
    run = Run.open(shutil.copytree(whole.path, tmp_path / "run"))
    for row in run.rows()[4:]:
        shutil.rmtree(row_folder(run.folder, row).root)
    shutil.rmtree(run.path / "best")
    (run.path / "best").mkdir()
    shutil.copy(whole.folder.best_architecture, run.folder.best_architecture)
    page = run.report().read_text()
    assert "4 of 10 rows finished" in page
    assert "not finished, 6 of 16" in page


# Several processes


class Plain(TinySpace):
    """Without normalisation, which would see a part of the batch, and dropout, whose draws are each process's own."""

    def candidate(self, option: Any) -> nn.Module:
        module = super().candidate(option)
        return module if option == "skip" else nn.Sequential(module[0], nn.Tanh())


class Fragile(TinyTask):
    """Its second process is killed at a loss of the second row, if the environment says so."""

    calls = 0

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        Fragile.calls += torch.is_grad_enabled() and os.environ.get("RANK") == "1"
        if Fragile.calls == 10 and "FRAGILE" in os.environ:
            os.kill(os.getpid(), 9)
        return super().loss(outputs, targets)


PLUGINS = {"space": {"name": "test_retraining:Plain"}, "task": {"name": "test_retraining:Fragile"}}


def test_processes_give_the_same_each_time_and_nearly_what_one_gives_and_a_killed_one_loses_nothing(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, forked_processes: None
) -> None:
    first = Run.create({**TINY, **PLUGINS}, tmp_path / "first").train().search()
    # Batches of 15 are cut into 8 and 7 samples; the last of an epoch has 6.
    settings = {"seeds": 2, "batch_size": 15}
    one = fork(first, tmp_path / "one", **settings).retrain()
    two = fork(first, tmp_path / "two", processes=2, **settings)
    monkeypatch.setenv("FRAGILE", "1")
    code, _, errors = command("retrain", two.path)
    assert code == 1
    assert "Error: the process of replica 1 (process id " in errors
    assert "was ended by SIGKILL" in errors
    # A loss is computed before the first step as well: the tenth one is of the second row.
    assert [row.seed for row in two.retrained()] == [0]
    # Put aside, so that this row is done twice.
    before = files(two, "retrain")
    before = {name: before[name] for name in before if "scratch-0" in name}
    shutil.move(row_folder(two.folder, two.rows()[0]).root, tmp_path / "aside")
    monkeypatch.delenv("FRAGILE")
    seen: list[Progress] = []
    Run.open(two.path, seen.append).retrain()
    assert [(progress.done, progress.total) for progress in seen] == [(n, 4) for n in range(1, 5)]
    after = files(two, "retrain")
    assert len(before) == 3
    assert before == {name: after[name] for name in before}
    for row in one.rows():
        # The sum over a batch is that of two partial sums: another order of additions.
        alone, shared = (row_folder(run.folder, row) for run in (one, two))
        weights, others = load_tensors(alone.model), load_tensors(shared.model)
        for name, tensor in weights.items():
            torch.testing.assert_close(others[name], tensor, rtol=1e-4, atol=1e-6)
        for line, other in zip(alone.logged(), shared.logged(), strict=True):
            assert other.loss == pytest.approx(line.loss, rel=1e-5)
    alone = files(one, "retrain")
    assert not any(alone[name] == after[name] for name in after if name.endswith("safetensors"))


@pytest.fixture
def replica() -> Iterator[SingleProcess]:
    """A process group of this process alone."""
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield DataParallelProcess(0, 1, "cpu", store)
    distributed.destroy_process_group()


class Partial(nn.Module):
    """Has a layer that nothing reaches, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused, self.frozen = nn.Linear(16, 3), nn.Linear(4, 4), nn.Linear(3, 3)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(self.used(x.flatten(1)))


def trained(module: nn.Module, share: SingleProcess) -> tuple[str, list[EpochRecord]]:
    """Return a digest of a module after training with decay, and its epochs."""
    settings = {**TINY["retrain"], "optimizer": {"name": "SGD", "lr": 0.1, "weight_decay": 0.5}}
    records: list[EpochRecord] = []
    task = TinyTask()
    config = as_config({**TINY, "retrain": settings}).retrain
    with deterministic(1, "cpu"):
        retrain(module, task, task.load(3).train, config, 3, "cpu", records.append, share)
    return digest_tensors(module.state_dict()), records


@pytest.mark.parametrize(
    "module",
    [Partial(), nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(3))],
    ids=["partial", "whole", "without-parameters"],
)
def test_what_nothing_reaches_is_left_alone_and_nothing_to_train_is_no_error(
    module: nn.Module, replica: SingleProcess
) -> None:
    assert trained(copy.deepcopy(module), replica) == trained(copy.deepcopy(module), SINGLE_PROCESS)


def test_parts_of_a_batch_are_contiguous_and_make_up_the_whole() -> None:
    store = distributed.HashStore()
    data = TensorDataset(torch.arange(7), torch.arange(7))
    parts = [
        DataParallelProcess(rank, 3, "cpu", store).samples(data.batch(range(7), 0)).inputs.tolist() for rank in range(3)
    ]
    assert parts == [[0, 1, 2], [3, 4], [5, 6]]
    assert isinstance(SINGLE_PROCESS.samples(data.batch([1], 0)), Batch)
    keys = {DataParallelProcess(rank, 3, "cpu", store).key(3, "retrain", 5) for rank in range(3)}
    assert len(keys | {SINGLE_PROCESS.key(3, "retrain", 5)}) == 4


# Bad input


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"init": []}, "retrain.init: List should have at least 1 item"),
        ({"init": ["scratch", "scratch"]}, "retrain.init: must name each of them once, but got ['scratch', 'scratch']"),
        ({"init": "warm"}, "retrain.init: must be 'scratch', 'inherit' or 'finetune', but got 'warm'"),
        ({"init": ["scratch", "warm"]}, "retrain.init[1]: must be 'scratch', 'inherit' or 'finetune', but got 'warm'"),
        ({"seeds": 0}, "retrain.seeds: must be greater than or equal to 1, but got 0"),
        ({"best": 0}, "retrain.best: must be greater than or equal to 1, but got 0"),
        ({"processes": 0}, "retrain.processes: must be greater than or equal to 1, but got 0"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        as_config({**TINY, "retrain": {**TINY["retrain"], **settings}})
    (problem,) = caught.value.problems
    assert message in str(problem)


def test_processes_that_cannot_be_started_are_refused_before_anything_is(
    searched: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    def config(**settings: Any) -> dict[str, Any]:
        return {**TINY, "retrain": {**TINY["retrain"], "processes": 2, **settings}}

    naspipe.register_task("local-by-test_retraining")(TinyTask)
    local = {**config(), "task": {"name": "local-by-test_retraining"}}
    with pytest.raises(InputError, match="processes = 2 starts processes, but task 'local-by.* this process only"):
        Run.create(local, tmp_path / "run")
    # 36 samples in batches of 5: the last of an epoch has one.
    with pytest.raises(InputError, match=r"retrain.processes must be at most .* is 2, .*batch_size = 5 a batch has 1"):
        Run.create(config(batch_size=5), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    run = fork(searched, tmp_path / "other", processes=2)
    monkeypatch.setattr(requirements, "distributed_backends", lambda: ["mpi"])
    code, _, errors = command("retrain", run.path)
    assert code == 2
    assert "retrain.processes = 2 needs torch's backend gloo, but this build of torch has mpi" in errors
    assert not run.folder.retraining.exists()
    on_gpu = run.config.model_copy(update={"training": run.config.training.model_copy(update={"device": "cuda"})})
    monkeypatch.setattr(requirements, "distributed_backends", lambda: ["gloo", "nccl"])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(
        InputError, match="= 2 needs a GPU for each process, but torch sees 1. Set retrain.processes to 1"
    ):
        requirements.check_retrain_processes(on_gpu)


def test_metrics_of_a_row_that_are_damaged_are_named(whole: Run, tmp_path: Path) -> None:
    run = Run.open(shutil.copytree(whole.path, tmp_path / "run"))
    path = row_folder(run.folder, run.rows()[1]).metrics
    path.write_text(json.dumps({"text": 3}))
    with pytest.raises(
        naspipe.errors.RunFolderError, match=r"-scratch-1/metrics.json cannot be read: text must be a valid"
    ):
        run.retrained()
    assert "cannot be shown" in run.report().read_text()
