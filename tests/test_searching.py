"""The search phase of a run: constraints, measures, workers, budgets, and going on after anything."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TINY, Command, TinySpace, TinyTask
from torch import nn

import naspipe
from naspipe import Measure, Run, Subnet
from naspipe.config.schema import BudgetConfig
from naspipe.errors import ConfigError, InputError, NaspipeWarning, RunError, RunFolderError, SearchError, SpaceError
from naspipe.files import read_json
from naspipe.search import workers as workers_module
from naspipe.search.builtin_measures import ActivationMemory, Flops, Latency, Parameters
from naspipe.search.trial import Trial
from naspipe.training.progress import Progress

RESUMABLE: dict[str, dict[str, Any]] = {
    "random": {"name": "random", "batch": 4},
    "grid": {"name": "grid", "batch": 4},
    "evolution": {"name": "evolution", "population": 5},
    "regularized_evolution": {"name": "regularized_evolution", "population": 6, "sample": 3},
    "local_search": {"name": "local_search"},
    "optuna": {"name": "optuna", "sampler": "TPESampler", "arguments": {"n_startup_trials": 4}},
}


class Slow(Measure):
    """A measure by the clock that gives another number each time."""

    direction = "minimize"
    timed = True
    taken = 0

    def measure(self, subnet: Subnet) -> float:
        type(self).taken += 1
        return float(type(self).taken)


class Moody(TinyTask):
    """Kills the process that evaluates, as often as a file has lines."""

    def __init__(self, lives: str = "") -> None:
        self.lives = Path(lives)

    def measure(self, outputs: Any, targets: Any) -> Any:
        if self.lives.is_file() and (left := self.lives.read_text().splitlines()):
            self.lives.write_text("\n".join(left[1:]))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().measure(outputs, targets)


class Unready(TinyTask):
    """Has data in one process only."""

    home = os.getpid()

    def __init__(self, home: int = 0) -> None:
        self.only = home

    def load(self, seed: int) -> Any:
        if os.getpid() != self.only:
            raise OSError("the data has gone")
        return super().load(seed)


def configured(**search: Any) -> dict[str, Any]:
    """Return the tiny configuration with another search."""
    return {**TINY, "search": {**TINY["search"], **search}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that has been trained and no more."""
    return Run.create(TINY, tmp_path_factory.mktemp("runs") / "trained").train().path


@pytest.fixture
def make(trained: Path, tmp_path: Path) -> Any:
    """Return a function that makes a trained run with another search."""

    def make_run(name: str = "run", watch: Any = lambda progress: None, **search: Any) -> Run:
        folder = tmp_path / name
        shutil.copytree(trained, folder)
        resolved = naspipe.training.context.as_config(configured(**search))
        (folder / "config.yaml").write_text(resolved.to_yaml())
        return Run.open(folder, watch)

    return make_run


def again(run: Run) -> Run:
    return Run.open(run.path)


@pytest.mark.parametrize("name", RESUMABLE)
def test_a_search_interrupted_at_every_trial_gives_the_uninterrupted_list(make: Any, name: str) -> None:
    search = {"strategy": RESUMABLE[name], "budget": {"trials": 30}}
    whole = make("whole", **search).search()
    broken = make("broken", **search)

    def interrupt(progress: Progress) -> None:
        raise KeyboardInterrupt

    count = 0
    while not broken.folder.best_architecture.exists():
        count += 1
        try:
            Run.open(broken.path, interrupt).search()
        except KeyboardInterrupt:
            assert len(broken.trials()) == count
    assert count == 31
    for file in ("trials", "best_architecture", "search_settings"):
        assert getattr(broken.folder, file).read_bytes() == getattr(whole.folder, file).read_bytes()


class TestConstraints:
    # What learns from few trials may propose the same infeasible architectures again and again.
    @pytest.mark.filterwarnings("ignore:100 proposals:naspipe.NaspipeWarning")
    def test_only_feasible_architectures_are_evaluated_whatever_the_strategy(self, make: Any) -> None:
        for name, strategy in RESUMABLE.items():
            run = make(name, strategy=strategy, budget={"trials": 8}, constraints=["flops <= 6000", "parameters>150"])
            trials = run.search().trials()
            assert len(trials) == 8
            for trial in trials:
                assert trial.metrics["flops"] <= 6000
                assert trial.metrics["parameters"] > 150

    def test_what_nothing_satisfies_is_refused_before_training_with_the_nearest_miss(self, tmp_path: Path) -> None:
        config = configured(constraints=["flops < 10"])
        with pytest.raises(
            SpaceError, match=r"none of 64 architectures .* flops < 10. The nearest miss has flops 1248"
        ):
            Run.create(config, tmp_path / "none")
        assert not (tmp_path / "none").exists()

    def test_a_measure_that_fails_is_named_before_training(self, tmp_path: Path) -> None:
        @naspipe.register_objective("broken-by-test_searching", "minimize")
        def broken(subnet: Subnet) -> float:
            return float("nan")

        config = configured(objectives=["accuracy", "broken-by-test_searching"])
        with pytest.raises(InputError, match="objective 'broken-by-test_searching' of .* must be a finite number"):
            Run.create(config, tmp_path / "none")


class TestMeasures:
    def test_functions_can_be_objectives(self, make: Any) -> None:
        @naspipe.register_objective("skips-by-test_searching", "maximize")
        def skips(subnet: Subnet) -> float:
            """Count the skips."""
            return list(subnet.architecture.values()).count("skip")

        run = make(objectives=["skips-by-test_searching"], strategy={"name": "grid"}, budget={"trials": 64}).search()
        assert [*run.best_architecture().values()] == ["skip"] * 3
        # Where every objective is a measure, the task is not asked.
        assert set(run.trials()[0].metrics) == {"skips-by-test_searching", "parameters"}

    def test_a_measure_can_be_given_by_reference(self, make: Any) -> None:
        run = make(objectives=["accuracy", "test_searching:Slow"], constraints=["test_searching:Slow >= 1"])
        assert [objective.name for objective in run.components.objectives] == ["accuracy", "Slow"]
        assert "Slow" in run.search().trials()[0].metrics

    def test_what_is_taken_by_the_clock_is_looked_up_when_a_search_goes_on(self, make: Any) -> None:
        def interrupt(progress: Progress) -> None:
            if progress.done == 6:
                raise KeyboardInterrupt

        run = make("run", interrupt, objectives=["accuracy", "test_searching:Slow"])
        with pytest.raises(KeyboardInterrupt):
            run.search()
        before = run.trials()
        lines = run.folder.timings.read_text().splitlines()
        assert len(lines) >= 6
        taken = Slow.taken
        trials = again(run).search().trials()
        assert trials[:6] == before
        assert Slow.taken == taken + 10 - len(lines)
        values = [json.loads(line)["metrics"]["Slow"] for line in lines]
        assert [trial.metrics["Slow"] for trial in trials[: len(lines)]] == values

    def test_scores_with_and_without_calibration_are_kept(self, make: Any) -> None:
        metrics = make().search().trials()[0].metrics
        assert {"accuracy", "uncalibrated_accuracy", "loss", "uncalibrated_loss", "parameters"} == set(metrics)
        assert metrics["loss"] != metrics["uncalibrated_loss"]

    def test_flops_and_parameters_are_those_counted_by_hand(self) -> None:
        subnet = self.subnet()
        # A product of 5 x 4 for one sample, and one of 3 x 5.
        assert Flops().measure(subnet) == 2 * (5 * 4 + 3 * 5)
        assert Parameters().measure(subnet) == 5 * 4 + 5 + 3 * 5 + 3

    def test_activation_memory_is_the_most_that_is_alive_at_one_time(self) -> None:
        # Input and weights do not count; the first layer's five numbers have gone when the rectified ones are
        # multiplied, but not while they are made.
        assert ActivationMemory().measure(self.subnet()) == 4 * (5 + 5)

    def test_latency_has_a_spread(self) -> None:
        measured = Latency().measure(self.subnet())
        assert measured["value"] > 0
        assert measured["spread"] >= 0

    def subnet(self) -> Subnet:
        class Data:
            def __len__(self) -> int:
                return 10

            def batch(self, indices: Any, key: int) -> naspipe.Batch:
                return naspipe.Batch(torch.zeros(len(indices), 4), torch.zeros(len(indices)))

        module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
        space = TinySpace()
        architecture = space.random_architecture(naspipe.keyed_random(0))
        return Subnet(space, architecture, lambda: module, Data())  # type: ignore[arg-type]  # all that is asked for

    def test_where_only_architectures_are_known_a_module_is_refused(self) -> None:
        space = TinySpace()
        subnet = Subnet(space, space.random_architecture(naspipe.keyed_random(0)))
        assert naspipe.Candidate is Subnet, "plug-ins have the former name"
        with pytest.raises(SearchError, match="needs the module cannot be used"):
            Parameters().measure(subnet)

    def test_a_measure_must_say_which_way_is_better(self) -> None:
        class Aimless(Measure):
            def measure(self, subnet: Subnet) -> float:
                return 0.0

        naspipe.registry.objectives.register("aimless-by-test_searching")(Aimless)
        with pytest.raises(ConfigError, match="direction must be 'maximize' or 'minimize', but is None"):
            naspipe.training.context.as_config(configured(objectives=["aimless-by-test_searching"]))


class TestWorkers:
    def test_two_workers_give_the_trials_of_one_byte_for_byte(self, make: Any) -> None:
        search = {"objectives": ["accuracy", "parameters"], "constraints": ["flops <= 3000"]}
        one = make("one", **search).search()
        two = make("two", **search).search(workers=2)
        assert one.folder.trials.read_bytes() == two.folder.trials.read_bytes()
        assert one.folder.best_architecture.read_bytes() == two.folder.best_architecture.read_bytes()
        assert not workers_module.multiprocessing.active_children()

    def dying(self, make: Any, tmp_path: Path, deaths: int) -> Run:
        lives = tmp_path / "lives"
        run: Run = make()
        text = run.folder.config.read_text().replace("conftest:TinyTask", f"test_searching:Moody\n  lives: {lives}")
        run.folder.config.write_text(text)
        lives.write_text("\n".join("x" * deaths))
        return Run.open(run.path)

    def test_a_worker_that_dies_is_replaced_and_its_candidate_evaluated_again(
        self, make: Any, tmp_path: Path, forked_processes: None
    ) -> None:
        expected = make("undisturbed").search().trials()
        assert self.dying(make, tmp_path, 1).search(workers=2).trials() == expected

    def test_a_candidate_over_which_workers_die_twice_has_failed_and_says_why(
        self, make: Any, tmp_path: Path, forked_processes: None
    ) -> None:
        # With one process at a time both deaths are over the first subnet.
        run = self.dying(make, tmp_path, 2)
        config = run.config.model_copy(update={"search": run.config.search.model_copy(update={"workers": 2})})
        pool = workers_module.WorkerPool(config, 1)
        supernet = run.supernet()
        architecture = run.components.space.random_architecture(naspipe.keyed_random(0))
        try:
            ((place, result),) = pool.evaluate([lambda: supernet.extract(architecture)])
        finally:
            pool.close()
        assert place == 0
        assert str(result) == "the process that evaluated it died 2 times, at last by SIGKILL"

    def test_a_worker_that_cannot_start_ends_the_search(self, make: Any, forked_processes: None) -> None:
        run: Run = make()
        text = run.folder.config.read_text().replace(
            "conftest:TinyTask", f"test_searching:Unready\n  home: {os.getpid()}"
        )
        run.folder.config.write_text(text)
        with pytest.raises(SearchError, match="(?s)cannot start: TaskError: .*the data has gone"):
            Run.open(run.path).search(workers=2)
        assert not workers_module.multiprocessing.active_children()

    def test_a_plugin_of_this_process_only_is_refused(self, trained: Path, tmp_path: Path) -> None:
        naspipe.register_task("here-by-test_searching")(type("Here", (TinyTask,), {"__module__": __name__}))
        shutil.copytree(trained, tmp_path / "run")
        config = tmp_path / "run" / "config.yaml"
        config.write_text(config.read_text().replace("conftest:TinyTask", "here-by-test_searching"))
        with pytest.raises(
            InputError, match=r"search.workers = 2 starts processes, but task 'here-.* set search.workers"
        ):
            Run.open(tmp_path / "run").search(extend=5, workers=2)
        # Nothing was extended.
        assert Run.open(tmp_path / "run").config.search.budget.trials == TINY["search"]["budget"]["trials"]

    def test_more_workers_than_a_generation_has_are_warned_of(self, tmp_path: Path) -> None:
        with pytest.warns(NaspipeWarning, match="search.workers = 5 are more than strategy 'evolution' proposes .* 4"):
            Run.create(configured(workers=5), tmp_path / "run")

    def test_what_is_ahead_of_the_others_is_kept_when_a_search_breaks_off(self) -> None:
        space, kept = TinySpace(), list[Trial]()

        def evaluate(architectures: Any) -> Iterator[tuple[int, Any]]:
            yield 2, {"accuracy": 0.5}
            yield 0, {"accuracy": 0.1}
            raise KeyboardInterrupt

        objectives = naspipe.training.components.find_objectives(TinyTask(), ["accuracy"])
        strategy = naspipe.registry.strategies.get("random")(batch=4)
        strategy.start(space, ["maximize"], 0)
        with pytest.raises(KeyboardInterrupt):
            naspipe.search.loop.run_search(space, strategy, objectives, BudgetConfig(trials=8), evaluate, kept.append)
        assert [trial.index for trial in kept] == [0, 2]


class TestBudget:
    def test_generations_are_counted(self, make: Any) -> None:
        run = make(budget={"generations": 3}, strategy={"name": "grid", "batch": 4}).search()
        assert len(run.trials()) == 12
        assert run.config.search.budget == BudgetConfig(generations=3)

    def test_no_generation_is_begun_after_the_time_over_all_resumes(self, make: Any) -> None:
        run = make(budget={"seconds": 1000}, strategy={"name": "random", "batch": 2})

        def interrupt(progress: Progress) -> None:
            if progress.done == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Run.open(run.path, interrupt).search()
        assert 0 < read_json(run.folder.search_clock) < 1000
        run.folder.search_clock.write_text("1000")
        # What is known is gone through whatever the clock says, and the generation that was begun is ended.
        assert len(again(run).search().trials()) == 4
        assert read_json(run.folder.search_clock) > 1000

    def test_a_search_is_extended_as_if_the_budget_had_been_greater(self, make: Any) -> None:
        whole = make("whole", budget={"trials": 15}).search()
        run = make(budget={"trials": 10}).search()
        first = run.folder.best_architecture.read_bytes()
        again(run).search(extend=5)
        assert run.folder.trials.read_bytes() == whole.folder.trials.read_bytes()
        assert run.folder.best_architecture.read_bytes() == whole.folder.best_architecture.read_bytes()
        assert (run.path / "best.after-10-trials" / "architecture.json").read_bytes() == first
        assert again(run).config.search.budget.trials == 15

    def test_less_than_a_generation_is_warned_of_with_its_cost(self, tmp_path: Path) -> None:
        with pytest.warns(NaspipeWarning, match="trials = 3 is less than one generation .* costs 4 evaluations"):
            Run.create(configured(budget={"trials": 3}), tmp_path / "run")


class TestGoingOn:
    def half_done(self, make: Any, **search: Any) -> Run:
        def interrupt(progress: Progress) -> None:
            if progress.done == 5:
                raise KeyboardInterrupt

        run: Run = make("run", interrupt, **search)
        with pytest.raises(KeyboardInterrupt):
            run.search()
        return run

    def test_a_changed_space_is_refused_with_the_decision(self, make: Any) -> None:
        run = self.half_done(make)
        text = run.folder.search_settings.read_text().replace("'conv3'", "'conv5'")
        run.folder.search_settings.write_text(text)
        message = r"decisions\.op0\.options was .*conv5.*; decisions\.op1\.options was .*; decisions\.op2\.options was"
        with pytest.raises(RunFolderError, match=message):
            again(run).search()

    def test_a_changed_strategy_is_refused(self, make: Any) -> None:
        run = self.half_done(make)
        run.folder.config.write_text(run.folder.config.read_text().replace("population: 4", "population: 5"))
        with pytest.raises(RunFolderError, match=r"search\.strategy\.population was 4 and is 5"):
            again(run).search()

    def test_a_strategy_that_would_have_proposed_something_else_is_refused(
        self, make: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = self.half_done(make, strategy={"name": "random"})
        monkeypatch.setattr("naspipe_strategies.random_search.keyed_random", lambda *key: naspipe.keyed_random(*key, 1))
        with pytest.raises(RunFolderError, match="must repeat its proposals, but trial 0 is now"):
            again(run).search()

    def test_a_last_line_that_was_broken_off_is_dropped_with_a_warning(self, make: Any) -> None:
        expected = make("whole").search().trials()
        run = self.half_done(make)
        run.folder.trials.write_bytes(run.folder.trials.read_bytes()[:-30])
        journal = pytest.warns(NaspipeWarning, match="study.journal has other trials than the run")
        with journal, pytest.warns(NaspipeWarning, match="line 5 is incomplete"):
            assert again(run).search().trials() == expected

    def test_a_full_disk_ends_the_search_and_loses_nothing(self, make: Any) -> None:
        expected = make("whole").search().trials()
        run = make()
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1500, before[1]))
            with pytest.raises(RunError, match="cannot be written: File too large. What was written before is kept"):
                run.search()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
        with pytest.warns(NaspipeWarning, match="is incomplete"):
            kept = run.trials()
        assert expected[: len(kept)] == kept
        assert len(kept) > 0
        with pytest.warns(NaspipeWarning):
            assert again(run).search().trials() == expected


def test_the_command_line_extends_and_takes_workers(make: Any, command: Command, forked_processes: None) -> None:
    run = make().search()
    code, _, errors = command("search", run.path)
    assert code == 2
    assert "a finished search already" in errors
    code, text, _ = command("search", run.path, "--extend", 4, "--workers", 2)
    assert code == 0
    assert "Best architecture" in text
    assert len(again(run).trials()) == 14
    assert command("search", run.path, "--extend", 0)[0] == 2
    assert command("search", run.path, "--extend", 1, "--workers", 0)[0] == 2
