"""What may import what: design decisions that only a test can hold."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import naspipe

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {
    "naspipe": ROOT / "toolkit" / "naspipe",
    "naspipe_spaces": ROOT / "search_spaces" / "naspipe_spaces",
    "naspipe_strategies": ROOT / "strategies" / "naspipe_strategies",
}
FORBIDDEN = {
    "naspipe": {"naspipe_spaces", "naspipe_strategies"},
    "naspipe_spaces": {"naspipe_strategies"},
    "naspipe_strategies": {"naspipe_spaces"},
}


LAYERS = (
    # From the bottom up: a module imports only modules of its own layer and of those above it in this list.
    {"errors", "environment", "files", "keys", "processes", "records", "registry", "usercode", "wording"},
    {"config"},
    {"space"},
    {"pipeline"},
    {"executors"},
    {"supernet"},
    {"tasks"},
    {"search"},
    {"training"},
    {"preflight"},
    {"results"},
    {"report"},
    {"runs"},
    {"verification"},
    {"testing"},
    {"cli"},
    {"__main__"},
)
MODULES = {
    name: path
    for package, root in SOURCES.items()
    for path in sorted(root.rglob("*.py"))
    for name in [".".join((package, *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")]
}


def imported(path: Path) -> set[str]:
    """Return everything that a file imports: at its top, within functions, and for type checkers only."""
    tree = ast.parse(path.read_text())
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(name if name in MODULES else node.module for name in names)
    return found


def graph() -> dict[str, set[str]]:
    """Return for each module of ours those that it imports."""
    # The package itself lists its public names, which it imports on demand.
    own = {name: path for name, path in MODULES.items() if name != "naspipe"}
    return {name: (imported(path) & own.keys()) - {name} for name, path in own.items()}


@pytest.mark.parametrize("package", SOURCES)
def test_packages_import_in_one_direction(package: str) -> None:
    files = list(SOURCES[package].rglob("*.py"))
    assert files
    for path in files:
        roots = {name.partition(".")[0] for name in imported(path)}
        assert not roots & FORBIDDEN[package], path


def test_layers_import_in_one_direction() -> None:
    place = {name: number for number, names in enumerate(LAYERS) for name in names}

    def layer(module: str) -> int:
        return place[module.split(".")[1]]

    ours = {module: names for module, names in graph().items() if module.startswith("naspipe.")}
    upward = [(one, other) for one, names in ours.items() for other in names if layer(other) > layer(one)]
    assert upward == []
    distributed = "naspipe.training.distributed"
    # What starts processes stands on the training; the training finds it only when processes are asked for.
    below = {one for one, names in ours.items() for other in names if distributed in other and distributed not in one}
    assert {one for one in below if one.startswith("naspipe.training")} == {"naspipe.training.supernet_training"}


def test_no_modules_import_each_other_in_a_circle() -> None:
    waiting = graph()
    while waiting:
        free = {module for module, names in waiting.items() if not names & waiting.keys()}
        assert free, f"a circle goes through some of {sorted(waiting)}"
        waiting = {module: names for module, names in waiting.items() if module not in free}


@pytest.mark.parametrize(
    "module",
    ["naspipe", "naspipe.space", "naspipe.executors.sequential", "naspipe.pipeline.planner",
     "naspipe.registry", "naspipe.config", "naspipe.cli.app", "naspipe.cli.measurements", "naspipe_strategies.spaced"],
)  # fmt: skip
def test_pure_modules_do_not_import_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize(
    "code",
    ["import naspipe.runs.run", "from naspipe.tasks.digits import Digits; Digits().load(0)",
     "import naspipe.report.page", "import naspipe.cli.result"],
    ids=["runs", "digits", "report", "results"],
)  # fmt: skip
def test_what_is_slow_to_import_waits_until_it_is_used(code: str) -> None:
    slow = ("optuna", "plotly", "scipy", "sklearn", "tokenizers", "nni")
    ask = f"import sys; {code}; sys.exit(' '.join(set({slow!r}) & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", ask], timeout=60, capture_output=True, text=True)
    assert found.stderr.strip() == ""


def test_every_public_name_is_there_and_the_list_is_complete() -> None:
    for name in naspipe.__all__:
        assert getattr(naspipe, name).__name__ == name
    stub = (SOURCES["naspipe"] / "__init__.py").read_text()
    typed = [
        alias.asname
        for node in ast.walk(ast.parse(stub))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    ]
    assert sorted(typed) == naspipe.__all__
