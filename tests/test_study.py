"""The trials of a search as an Optuna study: in memory, and in a journal file that grows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from torch import nn

from naspipe import Architecture, Decision, NaspipeWarning, RunError, SearchSpace, keyed_random
from naspipe.search.objective import Objective
from naspipe.search.study import StudyJournal, make_study
from naspipe.search.trial import Trial


class Conditional(SearchSpace):
    """A kind with a kernel that only convolutions have; options of every sort."""

    def __init__(self, widths: tuple[int, ...] = (16, 32)) -> None:
        super().__init__(
            [
                Decision("kind", ("conv", "skip", None)),
                Decision("kernel", ((3, 3), (5, 1), 7), when=("kind", ["conv"])),
                Decision("width", widths),
                Decision("bias", (True, False)),
            ]
        )

    def blocks(self) -> Iterator[nn.Module]:
        yield nn.Identity()


SPACE = Conditional()
OBJECTIVES = [Objective("accuracy", "maximize"), Objective("parameters", "minimize")]


def trials(count: int) -> list[Trial]:
    """Return trials of random architectures; every fifth failed."""
    made = []
    for index in range(count):
        generator = keyed_random(0, "test", index)
        metrics = {"loss": generator.random(), "accuracy": generator.random(), "parameters": generator.randrange(9999)}
        failed = index % 5 == 4
        architecture = SPACE.random_architecture(generator)
        made.append(Trial(index, architecture, {} if failed else metrics, "out of memory" if failed else None))
    return made


def read(path: Path) -> list[optuna.trial.FrozenTrial]:
    storage = JournalStorage(JournalFileBackend(str(path)))
    return optuna.load_study(study_name="run", storage=storage).trials


def contents(found: list[optuna.trial.FrozenTrial]) -> list[Any]:
    return [(t.number, t.state, t.values, t.params, t.distributions, t.user_attrs) for t in found]


def journal(path: Path, **more: Any) -> StudyJournal:
    return StudyJournal(path, SPACE, OBJECTIVES, "run", **more)


def write(path: Path, new: list[Trial], known: Sequence[Trial] = (), **more: Any) -> None:
    with journal(path, known=known, **more) as study:
        for trial in new:
            study.add(trial)


def expected(known: list[Trial]) -> list[Any]:
    return contents(make_study(known, SPACE, OBJECTIVES).trials)


def test_a_study_holds_what_the_trials_hold() -> None:
    made = trials(40)
    study = make_study(made, SPACE, OBJECTIVES, "run")
    assert [direction.name for direction in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    assert study.metric_names == ["accuracy", "parameters"]
    for trial, found in zip(made, study.trials, strict=True):
        assert found.number == trial.index
        assert list(found.params) == list(trial.architecture)
        for name, option in trial.architecture.items():
            shown = repr(option) if name == "kernel" else option
            assert found.params[name] == shown
            assert list(found.distributions[name].choices) == [
                repr(other) if name == "kernel" else other for other in SPACE.decision(name).options
            ]
        assert found.user_attrs["text"] == SPACE.format(trial.architecture)
        if trial.reason is None:
            assert found.state is TrialState.COMPLETE
            assert found.values == [trial.metrics["accuracy"], trial.metrics["parameters"]]
            assert found.user_attrs.keys() == {"text", "loss"}
            assert found.user_attrs["loss"] == trial.metrics["loss"]
        else:
            assert found.state is TrialState.FAIL
            assert found.values is None
            assert found.user_attrs.keys() == {"text", "reason"}
            assert found.user_attrs["reason"] == "out of memory"
    assert any("kernel" not in found.params for found in study.trials)


def test_options_whose_texts_are_alike_stay_apart() -> None:
    class Alike(Conditional):
        def __init__(self) -> None:
            SearchSpace.__init__(self, [Decision("shape", ((3, 3), "(3, 3)"))])

    space = Alike()
    made = [Trial(i, Architecture({"shape": o}), {"a": 1.0}) for i, o in enumerate(((3, 3), "(3, 3)"))]
    study = make_study(made, space, [Objective("a", "maximize")])
    assert [trial.params["shape"] for trial in study.trials] == ["(3, 3)", "'(3, 3)'"]


@pytest.mark.parametrize("every", [1, 7, 50])
def test_a_journal_holds_every_trial_once_and_in_order_however_they_come(tmp_path: Path, every: int) -> None:
    made = trials(30)
    shuffled = made.copy()
    keyed_random(1, "order").shuffle(shuffled)
    write(tmp_path / "a.journal", made, every=every)
    write(tmp_path / "b.journal", shuffled, every=every)
    assert contents(read(tmp_path / "a.journal")) == expected(made)
    assert contents(read(tmp_path / "b.journal")) == expected(made)


def test_a_journal_grows_every_so_many_trials_and_nothing_is_written_twice(tmp_path: Path) -> None:
    path = tmp_path / "search" / "study.journal"
    made = trials(25)
    with journal(path, every=10) as study:
        for trial in made:
            before = path.read_bytes()
            study.add(trial)
            after = path.read_bytes()
            assert after.startswith(before)
            assert (after != before) == (trial.index in (9, 19))
            assert len(read(path)) == (trial.index + 1) // 10 * 10
    assert len(read(path)) == 25


@pytest.mark.parametrize("written", range(0, 13, 4))
@pytest.mark.parametrize("logged", [12, 16, 20])
def test_after_a_resume_at_any_point_a_journal_holds_every_trial_once(
    tmp_path: Path, written: int, logged: int
) -> None:
    path = tmp_path / "study.journal"
    made = trials(20)
    write(path, made[:written])
    before = path.read_bytes()
    write(path, made[logged:], known=made[:logged], every=3)
    assert contents(read(path)) == expected(made)
    assert path.read_bytes().startswith(before)


def test_a_last_line_that_was_broken_off_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    made = trials(12)
    write(path, made[:8])
    path.write_bytes(path.read_bytes()[:-40])
    write(path, made[8:], known=made[:8])
    assert contents(read(path)) == expected(made)


def test_a_trial_with_a_gap_before_it_waits_for_the_resumed_search(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    made = trials(10)
    logged = [*made[:4], *made[6:]]
    write(path, logged)
    assert contents(read(path)) == expected(made[:4])
    write(path, made[4:6], known=logged[::-1])
    assert contents(read(path)) == expected(made)


def other_values(path: Path) -> None:
    write(path, [Trial(0, trials(1)[0].architecture, {"accuracy": 0.0, "parameters": 0})])


def other_options(path: Path) -> None:
    with StudyJournal(path, Conditional((16, 32, 64)), OBJECTIVES, "run") as study:
        for trial in trials(4):
            study.add(trial)


def other_study(path: Path) -> None:
    with StudyJournal(path, SPACE, OBJECTIVES, "another") as study:
        study.add(trials(1)[0])


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: write(path, trials(15)), "has other trials than the run"),
        (other_values, "has other trials than the run"),
        (other_options, "has other trials than the run"),
        (other_study, "cannot be read: KeyError"),
        (lambda path: path.write_text('{"x": 1}\n{"y": 2}\n'), "cannot be read: KeyError"),
        (lambda path: path.write_text("no JSON\n{}\n"), "cannot be read: JSONDecodeError"),
        (lambda path: path.write_text(""), "cannot be read: KeyError"),
    ],
)
def test_a_journal_that_says_something_else_is_written_anew_with_a_warning(
    tmp_path: Path, spoil: Any, reason: str
) -> None:
    path = tmp_path / "study.journal"
    spoil(path)
    made = trials(10)
    with pytest.warns(NaspipeWarning, match=f"study.journal {reason}.* written anew from the run's trials"):
        write(path, made[8:], known=made[:8])
    assert contents(read(path)) == expected(made)


def test_what_others_write_into_a_journal_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    made = trials(10)
    write(path, made[:5])
    study = optuna.load_study(study_name="run", storage=JournalStorage(JournalFileBackend(str(path))))
    study.set_user_attr("note", "promising")
    write(path, made[5:], known=made[:5])
    assert contents(read(path)) == expected(made)
    found = optuna.load_study(study_name="run", storage=JournalStorage(JournalFileBackend(str(path))))
    assert found.user_attrs == {"note": "promising"}


def test_nothing_is_said_on_the_console_and_optunas_own_verbosity_stays(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    verbosity = optuna.logging.get_verbosity()
    write(tmp_path / "study.journal", trials(5))
    make_study(trials(5), SPACE, OBJECTIVES)
    assert capfd.readouterr() == ("", "")
    assert optuna.logging.get_verbosity() == verbosity


def test_a_journal_that_cannot_be_written_is_a_run_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"file/study.journal cannot be written: (Not a directory|File exists)"):
        journal(tmp_path / "file" / "study.journal")
