"""The report: what its figures say, of runs that have finished, go on or were broken off."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY, Command, TinySpace
from test_study import Conditional

import naspipe
from naspipe import Architecture, NaspipeWarning, Run, SearchSpace, keyed_random
from naspipe.report.hypervolume import hypervolume_history
from naspipe.report.importance import decision_importances, importance_figure, importance_refusal
from naspipe.report.options import option_counts, option_survival
from naspipe.report.records import read_trials
from naspipe.search.objective import Objective
from naspipe.search.trial import Trial

ACCURACY, PARAMETERS = Objective("accuracy", "maximize"), Objective("parameters", "minimize")
TWO = [ACCURACY, PARAMETERS]
SPACE = TinySpace()


def evaluated(count: int, space: SearchSpace = SPACE) -> list[Trial]:
    """Return trials whose accuracy depends on the second decision of the tiny space alone."""
    trials = []
    for index in range(count):
        generator = keyed_random(5, "report", index)
        architecture = space.random_architecture(generator)
        score = list(architecture.options)[1]
        metrics = {"accuracy": float(len(str(score))), "parameters": generator.randrange(1000), "same": 1.0}
        trials.append(Trial(index, architecture, metrics))
    return trials


def at(*rows: tuple[float, float] | None) -> list[Trial]:
    return [
        Trial(index, Architecture({"x": index}), {}, "broken")
        if row is None
        else Trial(index, Architecture({"x": index}), {"accuracy": row[0], "parameters": row[1]})
        for index, row in enumerate(rows)
    ]


# Hypervolume


def area(points: Sequence[tuple[float, float]], reference: tuple[float, float]) -> float:
    """Return the area that points of (accuracy, parameters) dominate, in strips of accuracy."""
    total, bottom = 0.0, reference[0]
    for level in sorted({accuracy for accuracy, _ in points}):
        smallest = min(parameters for accuracy, parameters in points if accuracy >= level)
        total += (level - bottom) * (reference[1] - smallest)
        bottom = level
    return total


def test_the_hypervolume_is_the_dominated_share_of_the_box_up_to_the_reference_point() -> None:
    rows = [(generator.random(), 100 * generator.random()) for generator in (keyed_random(i) for i in range(40))]
    history = hypervolume_history(at(*rows), TWO)
    low, high = min(a for a, _ in rows), max(a for a, _ in rows)
    few, many = min(p for _, p in rows), max(p for _, p in rows)
    reference = (low - 0.1 * (high - low), many + 0.1 * (many - few))
    assert history.reference == pytest.approx(reference)
    box = (high - reference[0]) * (reference[1] - few)
    # Optuna adds and subtracts volumes as points come; here strips are added up.
    assert history.shares == pytest.approx([area(rows[: n + 1], reference) / box for n in range(40)])
    assert history.trials == list(range(40))


def test_failed_trials_have_no_place_in_the_hypervolume_and_equal_values_some() -> None:
    history = hypervolume_history(at((0.5, 10), None, (0.5, 20)), TWO)
    assert history.trials == [0, 2]
    assert history.reference == pytest.approx((-0.1 + 0.5, 21))
    assert history.shares == pytest.approx([1.0, 1.0])
    assert hypervolume_history(at((0.5, 10)), TWO).shares == pytest.approx([1.0])


# Options


def cells(figure: Any) -> tuple[list[list[Any]], list[list[str]]]:
    (heatmap,) = figure.data
    return [list(row) for row in heatmap.z], [list(row) for row in heatmap.text]


def test_survival_is_the_difference_of_shares_where_a_decision_exists() -> None:
    space = Conditional()

    def conv(kernel: Any, width: int) -> Architecture:
        return space.architecture({"kind": "conv", "kernel": kernel, "width": width, "bias": True})

    skip = space.architecture({"kind": "skip", "width": 16, "bias": True})
    everything = [conv((3, 3), 16), conv((5, 1), 32), conv(7, 32), skip]
    rows, hover = cells(option_survival(space, everything, everything[:2]))
    assert rows == [[25, -25, 0], [17, 17, -33], [0, 0, None], [0, 0, None]]
    assert hover[1][0] == "kernel = (3, 3)<br>33 % of the evaluated, 50 % of the best"
    rows, hover = cells(option_survival(space, everything, [skip]))
    assert rows[1] == [None, None, None]
    assert hover[1][0] == "kernel = (3, 3)<br>33 % of the evaluated, none of the best"


def test_counts_are_those_of_the_architectures() -> None:
    rows, hover = cells(option_counts(SPACE, [trial.architecture for trial in evaluated(50)]))
    assert [sum(row) for row in rows] == [50, 50, 50]
    assert hover[0][2] == f"op0 = (3, 2): {rows[0][2]}"


# Importance


def test_the_decision_that_an_objective_depends_on_is_the_most_important_one() -> None:
    trials = evaluated(40)
    found = decision_importances(SPACE, trials, [ACCURACY, PARAMETERS, Objective("same", "minimize")])
    assert list(found) == ["accuracy", "parameters"]
    assert next(iter(found["accuracy"])) == "op1"
    assert found["accuracy"]["op1"] > 0.95
    assert found["parameters"].keys() == {"op0", "op1", "op2"}
    assert sum(found["parameters"].values()) == pytest.approx(1)
    assert list(found["parameters"].values()) == sorted(found["parameters"].values(), reverse=True)
    assert decision_importances(SPACE, trials, [ACCURACY, PARAMETERS]) == {k: found[k] for k in found}
    (bars,) = importance_figure(found["accuracy"]).data
    assert list(bars.y) == list(found["accuracy"])


def test_importance_leaves_out_decisions_that_exist_sometimes() -> None:
    space = Conditional()
    trials = [
        Trial(i, space.random_architecture(keyed_random(i)), {"a": keyed_random(1, i).random()}) for i in range(30)
    ]
    found = decision_importances(space, trials, [Objective("a", "minimize")])
    assert found["a"].keys() == {"kind", "width", "bias"}


def test_too_few_or_too_many_trials_have_no_importance_and_it_is_said_why(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = [Trial(9, Architecture({}), {}, "broken")] * 30
    assert importance_refusal(SPACE, evaluated(20)) == ""
    assert "need 20 complete trials at least, and there are 19." in importance_refusal(SPACE, evaluated(19) + failed)
    assert "10 decisions need 30 complete" in importance_refusal(TinySpace(blocks=10), evaluated(29))
    monkeypatch.setattr("naspipe.report.importance.MAX_CELLS", 239)
    assert "20 complete trials times 12 options are more than 239." in importance_refusal(SPACE, evaluated(20))


# Pages and tables of runs


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with two objectives."""
    search = {**TINY["search"], "objectives": ["accuracy", "parameters"], "budget": {"trials": 24}}
    return naspipe.run({**TINY, "search": search}, tmp_path_factory.mktemp("runs") / "two")


@pytest.fixture
def searching(finished: Run, tmp_path: Path) -> Run:
    """A copy of it whose search has not finished; 20 trials were."""
    shutil.copytree(finished.path, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "best")
    run = Run.open(tmp_path / "copy")
    lines = run.folder.trials.read_text().splitlines(keepends=True)
    run.folder.trials.write_text("".join(lines[:20]))
    return run


def test_the_page_of_several_objectives_has_all_figures_and_marks_the_front(finished: Run) -> None:
    page = finished.folder.report.read_text()
    for name in ("search-accuracy", "search-parameters", "pareto-parameters", "hypervolume", "survival",
                 "importance-accuracy", "importance-parameters"):  # fmt: skip
        assert f'id="{name}"' in page
    assert ">chosen<" in page or ">chosen, knee<" in page
    assert "knee<" in page
    assert "are missing" not in page


def test_lines_out_of_order_and_gaps_change_nothing_but_are_told(searching: Run) -> None:
    trials, _ = read_trials(searching)
    lines = searching.folder.trials.read_text().splitlines(keepends=True)
    searching.folder.trials.write_text("".join([lines[3], *lines[:3], *reversed(lines[4:])]))
    assert read_trials(searching) == (trials, "")
    whole = searching.report().read_text()
    assert "20 of 24 architectures evaluated" in whole
    assert "not finished, 20 of 24" in whole
    assert "are missing" not in whole
    searching.folder.trials.write_text("".join([*lines[:7], *lines[9:]]))
    assert "Of the trials up to number 19, 2 are missing" in searching.report().read_text()


def test_a_damaged_line_hides_only_what_comes_below(searching: Run, command: Command) -> None:
    lines = searching.folder.trials.read_text().splitlines(keepends=True)
    searching.folder.trials.write_text("".join([*lines[:9], "damage\n", *lines[9:]]))
    page = searching.report().read_text()
    assert "trials.jsonl, line 10 cannot be read: it is not JSON" in page
    assert "9 of 24 architectures evaluated" in page
    assert "need 20 complete trials at least, and there are 9" in page
    assert 'id="pareto-parameters"' in page
    code, text, errors = command("report", searching.path, "--best", 99)
    assert (code, len(text.splitlines())) == (0, 1 + 9 + 1)
    assert "Warning: The file is damaged, and only what comes before is shown:" in errors


def test_a_search_without_a_number_of_trials_says_how_many_there_are_so_far(searching: Run) -> None:
    text = searching.folder.config.read_text()
    assert "trials: 24" in text
    text = text.replace("seconds: null", "seconds: 60.0").replace("trials: 24", "trials: null")
    searching.folder.config.write_text(text)
    page = Run.open(searching.path).report().read_text()
    assert "not finished, 20 so far" in page
    assert "20 architectures evaluated by evolution" in page


def test_a_training_that_goes_on_is_shown_as_far_as_it_is(finished: Run, tmp_path: Path) -> None:
    run = Run.create({**TINY, "training": {**TINY["training"], "subnets": 30}}, tmp_path / "run")
    assert "No subnet has been trained yet." in run.report().read_text()
    run.folder.training.metrics.parent.mkdir()
    lines = finished.folder.training.metrics.read_text().splitlines(keepends=True)
    run.folder.training.metrics.write_text("".join(lines[:12]) + lines[12][:20])
    with pytest.warns(NaspipeWarning, match="line 13 is incomplete, since its writing was interrupted"):
        page = run.report().read_text()
    assert "12 of 30 subnets trained" in page
    assert "not finished, 12 of 30" in page
    assert "No architecture has been evaluated yet." in page


def test_the_best_are_printed_in_order_with_every_metric_and_the_text(finished: Run, command: Command) -> None:
    before = finished.folder.report.stat().st_mtime_ns
    code, text, errors = command("report", finished.path, "--best", 3)
    assert (code, errors) == (0, f"Opening {finished.path}\n")
    head, *rows, last = text.splitlines()
    assert head.split()[:4] == ["trial", "accuracy", "parameters", "loss"]
    best = json.loads(finished.folder.best_architecture.read_text())
    assert len(rows) == 3
    assert rows[0].split()[0] == str(best["trial"])
    assert rows[0].rstrip().endswith(f"  {best['text']}")
    assert last == "3 of 24 complete trials, by Pareto fronts, in each the best in accuracy first."
    assert finished.folder.report.stat().st_mtime_ns == before
    assert len(command("report", finished.path, "--where", "parameters>0")[1].splitlines()) == 1 + 10 + 1


def test_conditions_and_the_pick_choose(finished: Run, command: Command) -> None:
    trials = finished.trials()
    sizes = sorted(trial.metrics["parameters"] for trial in trials)
    middle = sizes[12]
    arguments = ("report", finished.path, "--where", f"parameters<={middle},accuracy>=0", "--where", "loss>0")
    code, text, _ = command(*arguments, "--pick", "parameters", "--best", 99)
    assert code == 0
    shown = [int(row.split()[2].replace(",", "")) for row in text.splitlines()[1:-1]]
    assert shown == [size for size in sizes if size <= middle]
    assert f"complete trials that satisfy parameters <= {middle:,} and accuracy >= 0 and loss > 0" in text
    assert len(command(*arguments, "--pick", "knee")[1].splitlines()) == 3
    assert "the knee of their Pareto front first." in command(*arguments, "--pick", "knee")[1]


def test_a_choice_that_cannot_be_made_is_bad_input_that_says_what_can(
    finished: Run, command: Command, tmp_path: Path
) -> None:
    for option, value, message in (
        ("--where", "params<5", "no metric 'params'. Did you mean 'parameters'? The metrics are accuracy, loss"),
        ("--where", "parameters", "a condition must compare a metric with a number by"),
        ("--where", "parameters<1", "no trial satisfies parameters < 1. Trial "),
        ("--pick", "loss", "no objective 'loss' to pick by. There is accuracy, parameters, knee."),
        ("--best", "0", "greater than or equal to 1"),
    ):
        code, text, errors = command("report", finished.path, option, value)
        assert (code, text) == (2, "")
        assert message in errors
        assert "Traceback" not in errors
    run = Run.create(TINY, tmp_path / "run")
    code, _, errors = command("report", run.path, "--best", 3)
    assert code == 2
    assert f"has no trial to show yet. Run `naspipe search {run.path}` first." in errors
