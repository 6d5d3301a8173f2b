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


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("package", SOURCES)
def test_packages_import_in_one_direction(package: str) -> None:
    files = list(SOURCES[package].rglob("*.py"))
    assert files
    for path in files:
        roots = {name.partition(".")[0] for name in imported(path)}
        assert not roots & FORBIDDEN[package], path


@pytest.mark.parametrize(
    "module",
    ["naspipe", "naspipe.space", "naspipe.executors.sequential", "naspipe.pipeline.planner",
     "naspipe.registry", "naspipe.config", "naspipe.cli.app", "naspipe_strategies.spaced"],
)  # fmt: skip
def test_pure_modules_do_not_import_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


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
