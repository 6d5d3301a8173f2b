"""The table of NAS-Bench-201, read without running what a pickle may name."""

from __future__ import annotations

import importlib.util
import pickle
import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest

from naspipe.errors import InputError
from naspipe_spaces import nasbench201_table
from naspipe_spaces.nasbench201 import NASBench201
from naspipe_spaces.nasbench201_table import read_table, true_accuracy


def test_the_table_has_all_cells_and_known_figures() -> None:
    table = read_table()
    assert len(table) == 15_625
    best = NASBench201().parse(
        "|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|+|skip_connect~0|nor_conv_1x1~1|nor_conv_3x3~2|"
    )
    assert true_accuracy(best) > 93.5
    assert max(table.values()) == pytest.approx(94.07, abs=0.01)
    assert statistics.median(table.values()) == pytest.approx(90.4, abs=0.1)


def test_cells_without_a_path_are_at_chance() -> None:
    space = NASBench201()
    cut = space.parse("|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|+|none~0|none~1|none~2|")
    assert true_accuracy(cut) == 10.0
    assert sum(value == 10.0 for value in read_table().values()) == 341


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the package lie in a folder of the test."""
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(nasbench201_table, "read_table", read_table.__wrapped__)
    return tmp_path / "data.anb"


class Command:
    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("executed",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(Command()), "must hold only its own two classes, but names builtins.print"),
        (b"nothing", "must be the table of NAS-Bench-201, but"),
        (pickle.dumps({}), "must hold all 15,625 cells, but holds 0"),
        (None, "No such file"),
    ],
)
def test_another_file_is_refused(
    elsewhere: Path, content: bytes | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        elsewhere.write_bytes(content)
    with pytest.raises(InputError, match=message):
        nasbench201_table.read_table()
    assert capsys.readouterr().out == ""


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'naspipe\[nasbench\]'"):
        read_table.__wrapped__()
