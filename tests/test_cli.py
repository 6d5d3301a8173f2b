"""The command line, in this process; what it prints and how it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Command

import naspipe
from naspipe.cli.app import app
from naspipe.cli.plugins import plugins
from naspipe.cli.run_commands import default_config

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def config(tmp_path: Path, tiny: dict[str, Any]) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny))
    return path


def test_the_commands_are_these() -> None:
    names = {command.callback.__name__ for command in app.registered_commands if command.callback}
    assert names == {
        "run", "train", "resume", "search", "retrain", "rank_check", "export", "report", "validate", "plan", "simulate",
        "verify", "compare", "doctor",
    }  # fmt: skip
    assert [group.name for group in app.registered_groups] == ["plugins"]
    assert [command.name for command in plugins.registered_commands] == ["show", "check"]


def test_run_ends_with_architecture_scores_files_and_the_next_commands(
    command: Command, config: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code, text, errors = command("run", config, "--out", out)
    assert (code, errors) == (0, "")
    lines = text.splitlines()
    assert lines[:2] == [f"Checking {config}", f"Run folder: {out}"]
    for title in ("Training", "Search", "Retraining"):
        assert 2 <= sum(line.startswith(title) for line in lines) <= 12
    last = dict(line.split(maxsplit=1) for line in lines[-8:-1] if not line.startswith("Best"))
    assert lines[-8].startswith("Best architecture  op0=")
    assert last["Validation"].startswith("accuracy 0.")
    assert last["Test"].startswith("accuracy ")
    assert last["Model"] == f"{out}/best/model.safetensors"
    assert last["Report"] == f"{out}/report.html"
    assert "naspipe.Run.open" in last["Next"]
    assert lines[-1].strip() == f"naspipe run {out}/config.yaml --set seed=4"


def test_the_phases_one_by_one_name_what_comes_next(command: Command, config: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, text, _ = command("train", config, "--out", out, "--set", "training.subnets=5")
    assert code == 0
    assert f"Digest      {naspipe.Run.open(out).digest}" in text
    assert f"naspipe search {out}" in text
    code, text, _ = command("search", out)
    assert code == 0
    assert f"naspipe retrain {out}" in text
    assert command("retrain", out)[0] == 0
    assert command("report", out)[:2] == (0, f"Report  {out}/report.html\n")


def test_validate_prints_sizes_and_creates_nothing(
    command: Command, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.rglob("*"))
    code, text, _ = command("validate", config, "--set", "seed=9")
    assert code == 0
    assert "seed: 9" in text
    assert "64 architectures of 3 decisions" in text
    assert "train 36, validation 12, test 12" in text
    # Stem 4*9+4 = 40, head 16*3+3 = 51.
    assert "Always active  91 parameters" in text
    assert set(tmp_path.rglob("*")) == before


def test_bad_input_ends_with_2_and_creates_nothing(command: Command, config: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for arguments, message in (
        (("run", config, "--out", out, "--set", "training.subnet=3"), "Did you mean 'subnets'?"),
        (("run", tmp_path / "none.yaml", "--out", out), "cannot be read"),
        (("train", config, "--out", out, "--set", "space.name=tiny"), "there is no space 'tiny'"),
        (("search", tmp_path), "is no run folder"),
        (("plugins", "evolutoin"), "Did you mean 'evolution'?"),
        (("plugins", f"{config}.py:X"), "there is no"),
        (("plugins", "mine.py"), "named by file and class, as in mine.py:Class"),
        (("plugins", "conftest:TINY"), "is not a plug-in"),
        (("run", config, "--frobnicate"), "No such option"),
    ):
        code, _, errors = command(*arguments)
        assert code == 2, errors
        assert message in errors
        assert "Traceback" not in errors
    assert not out.exists()


def test_a_failure_while_running_ends_with_1_and_shows_the_cause(
    command: Command, tiny: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "failing.py").write_text(
        "from conftest import TinyTask\n"
        "class Failing(TinyTask):\n"
        "    def loss(self, outputs, targets):\n"
        "        loss = super().loss(outputs, targets)\n"
        "        if loss.requires_grad:\n"
        "            loss.register_hook(self.fail)\n"
        "        return loss\n"
        "    calls = 0\n"
        "    def fail(self, gradient):\n"
        "        Failing.calls += 1\n"
        "        if Failing.calls > 10:  # Before training starts, each option is tried once.\n"
        "            raise RuntimeError('my loss is broken')\n"
    )
    path = tmp_path / "failing.yaml"
    path.write_text(yaml.safe_dump({**tiny, "task": {"name": "failing.py:Failing"}}))
    code, _, errors = command("run", path, "--out", tmp_path / "out")
    assert code == 1
    assert 'failing.py", line 12, in fail' in errors
    assert "Error: supernet training, action 0B" in errors


def test_an_interrupt_ends_with_130(
    command: Command, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: object, trace: bool = False) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(naspipe.Run, "train", interrupt)
    code, _, errors = command("run", config, "--out", tmp_path / "out")
    assert code == 130
    assert "what was computed is in the run folder" in errors


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        ("train", "To resume: naspipe resume '"),
        ("search", "To resume: naspipe search '"),
        ("retrain", "To resume: naspipe retrain '"),
    ],
)
def test_an_interrupt_says_how_to_go_on(
    command: Command, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    phase: str, message: str,
) -> None:  # fmt: skip
    def interrupt(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    target = {
        "train": "naspipe.training.trainer.SupernetTrainer.run",
        "search": "naspipe.runs.search_phase.run_search",
        "retrain": "naspipe.runs.retrain_rows.retrain",
    }[phase]
    monkeypatch.setattr(target, interrupt)
    out = tmp_path / "my out"
    code, _, errors = command("run", config, "--out", out)
    assert code == 130
    assert f"Interrupted. {message}{out}" in errors


def test_a_used_up_space_is_said_in_the_summary(command: Command, config: Path, tmp_path: Path) -> None:
    overrides = ("--set", "space.blocks=1", "--set", "search.strategy={name: random}")
    code, text, _ = command("run", config, "--out", tmp_path / "out", *overrides)
    assert code == 0
    assert "Search ended early the space is exhausted: all of its 4 architectures" in text
    report = (tmp_path / "out" / "report.html").read_text()
    assert "The search ended early: the space is exhausted" in report


def test_a_run_whose_reader_has_gone_goes_on(config: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from naspipe.cli.output import watching; from naspipe.runs.run import Run\n"
        "sys.stdin.readline()\n"
        "with watching() as watch:\n"
        f"    run = Run.create({str(config)!r}, {str(tmp_path / 'out')!r}, watch)\n"
        "    run.train().search().retrain()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        _, errors = process.communicate("\n", timeout=120)
    assert (process.returncode, errors) == (
        0,
        "Warning: nothing reads the output any more; the command continues.\n",
    )
    assert (tmp_path / "out" / "best" / "metrics.json").exists()


def test_warnings_are_plain_lines(command: Command, config: Path) -> None:
    config.write_text(config.read_text().replace("distance: 2", "distance: 0"))
    text = config.read_text() + "executor: {name: other, options: {bulk: 2}}\n"
    config.write_text(text)
    code, _, errors = command("validate", config, "--set", "executor.name=sequential")
    assert code == 0
    first, second, *_ = errors.splitlines()
    assert first == f"Checking {config}"
    assert second.startswith("Warning: executor.options of 'other' are dropped")


def test_plugins_lists_every_kind_and_one_broken_plugin_disturbs_no_other(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from naspipe import registry

    def fail() -> object:
        raise RuntimeError("my own fault")

    broken = registry.Plugin("space", "broken", "x:Y in z", fail)
    found = registry._entry_points
    monkeypatch.setattr(
        registry,
        "_entry_points",
        lambda kind, group: [*found(kind, group), *([broken] if kind == "space" else [])],
    )
    code, text, _ = command("plugins")
    assert code == 0
    for kind, name in (("space", "nasbench201"), ("sampler", "spaced"), ("strategy", "evolution"),
                       ("executor", "sequential"), ("task", "digits")):  # fmt: skip
        assert any(line.split()[:2] == [kind, name] for line in text.splitlines())
    assert "RuntimeError: my own fault (naspipe plugins broken shows all of it)" in text
    code, _, errors = command("plugins", "broken")
    assert code == 2
    assert "Traceback" in errors
    assert "my own fault" in errors


def test_plugins_shows_parameters_with_types_defaults_and_docs(command: Command) -> None:
    code, text, _ = command("plugins", "nasbench201")
    assert code == 0
    assert "channels: int >= 1, default 16\n      Channels of the first stage;" in text
    assert "mutation_probability: float >= 0, <= 1 | None, default None" in command("plugins", "evolution")[1]
    assert "distance: int >= 0, required" in command("plugins", "spaced")[1]
    assert "width: int, default 4" in command("plugins", "conftest:TinySpace")[1]
    assert "It takes no parameters." in command("plugins", "uniform")[1]


def test_doctor_names_versions_and_what_is_missing(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    code, text, _ = command("doctor")
    assert code == 0
    for word in ("torch", "CPU", "Threads", "GPUs", "Backends", "nni"):
        assert word in text
    monkeypatch.setattr("naspipe.environment.PACKAGES", ("naspipe", "no-such-package"))
    code, text, errors = command("doctor")
    assert code == 1
    assert "no-such-package: pip install naspipe again" in errors


def test_progress_bars_are_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from io import StringIO

    from rich.console import Console

    from naspipe.cli import output
    from naspipe.training.progress import Progress

    screen = StringIO()
    monkeypatch.setattr(output, "Console", lambda: Console(file=screen, force_terminal=True, width=100))
    with output.watching() as watch:
        watch(Progress("train", 1, 2, "loss 1.0"))
        watch(Progress("train", 2, 2, "loss 0.5"))
    assert "Training" in screen.getvalue()
    assert "2/2" in screen.getvalue()


def test_progress_beside_a_table_goes_to_standard_error(command: Command, config: Path) -> None:
    options = ("--executors", "csp", "--stages", "2", "--subnets", 4, "--set", "executor.costs=flops")
    code, text, errors = command("verify", config, *options)
    assert (code, len(text.splitlines())) == (0, 1 + 2 + 1)
    first, second, *trainings = errors.splitlines()
    assert [first, second] == [f"Checking {config}", "Counting the FLOPs of every layer"]
    assert [line.split()[:2] for line in trainings] == [["Training", "2/4"], ["Training", "4/4"]] * 2


def test_the_default_example_is_the_shipped_one_and_valid(command: Command) -> None:
    assert default_config() == (ROOT / "examples" / "digits.yaml").resolve()
    assert command("validate", default_config())[0] == 0


def test_a_space_a_task_and_a_strategy_of_ones_own_fit_in_60_lines_and_run(command: Command, tmp_path: Path) -> None:
    assert len((ROOT / "examples" / "custom.py").read_text().splitlines()) < 60
    code, _, _ = command("run", ROOT / "examples" / "custom.yaml", "--out", tmp_path / "out")
    assert code == 0
    metrics = naspipe.Run.open(tmp_path / "out").best_metrics()
    assert metrics["test"]["accuracy"] > 0.8


@pytest.mark.parametrize(
    ("names", "doing", "prints_data"),
    [
        (("run", "train"), "Checking", False),
        (("validate", "plan", "verify", "compare"), "Checking", True),
        (("resume", "search", "retrain", "rank-check"), "Opening", False),
        (("export", "report"), "Opening", True),
    ],
)
def test_the_first_line_of_a_command_names_its_input(
    command: Command, tmp_path: Path, names: tuple[str, ...], doing: str, prints_data: bool
) -> None:
    line = f"{doing} {tmp_path / 'none'}\n"
    for name in names:
        code, text, errors = command(name, tmp_path / "none")
        assert (code, text) == (2, "" if prints_data else line)
        assert errors.startswith(f"{line if prints_data else ''}Error: ")


def test_help_and_first_lines_wait_for_nothing_slow() -> None:
    checking = ["run", "train", "validate", "plan", "verify", "compare"]
    opening = ["resume", "search", "retrain", "rank-check", "export", "report"]
    # In this process the slow packages cannot be imported: only lines that come before them are printed.
    code = (
        "import sys; from naspipe.cli.app import main; sys.stderr = sys.stdout\n"
        "sys.modules.update(dict.fromkeys(['torch', 'numpy', 'optuna', 'plotly', 'pydantic']))\n"
        f"for name in {['--help', *checking, *opening]}:\n"
        "    print('====', name)\n"
        "    if name == 'run':\n        del sys.modules['pydantic']  # Typer reads arguments with it.\n"
        "    sys.argv = ['naspipe', name, *(['x'] if name[0] != '-' else [])]\n"
        "    try:\n        main()\n"
        "    except (ImportError, SystemExit) as end:\n        print(type(end).__name__, getattr(end, 'code', ''))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    _, described, *others = done.stdout.split("==== ")
    assert described.endswith("\nSystemExit 0\n")
    expected = [f"{name}\nChecking x\n" for name in checking] + [f"{name}\nOpening x\n" for name in opening]
    assert [text.partition("ModuleNotFoundError")[0] for text in others] == expected
