"""Tables and numbers: a page and a terminal show the same cells."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from naspipe.cli.output import show_table
from naspipe.report import markup
from naspipe.report.table import Column, Spread, Table, metrics_text, number

ARCHITECTURE = "|" + "nor_conv_3x3~0|+|" * 40


def table() -> Table:
    columns = ("trial", Column("score", right=True), Column("architecture", wrap="anywhere"))
    found = Table(columns, [("1", Spread(0.5, 0.01), ARCHITECTURE)], "Two trials.")
    found.add("12", None, "[a] <b>")
    return found


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234567, "1,234,567"), (1234567.0, "1,234,567"), (12345.6, "12,346"), (512.0, "512"), (12.345678, "12.3457"),
        (1.0, "1.0000"), (0.0, "0.0000"), (-0.25, "-0.2500"), (0.00001234567, "1.235e-05"), (1e300, "1e+300"),
        (float("nan"), "nan"), (float("inf"), "inf"), (None, ""), ("text", "text"),
    ],
)  # fmt: skip
def test_numbers_have_one_form(value: object, text: str) -> None:
    assert number(value) == text


def test_metrics_are_named() -> None:
    assert metrics_text({"accuracy": 0.91234, "parameters": 12345}) == "accuracy 0.9123, parameters 12,345"
    assert number(0.123456789, 6) == "0.123457"


def test_a_pipe_gets_a_line_for_each_row_however_long(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(table())
    head, first, second, caption = capsys.readouterr().out.splitlines()
    assert head.split() == ["trial", "score", "architecture"]
    assert first.split() == ["1", "0.5000", "+-", "0.0100", ARCHITECTURE]
    assert second.split() == ["12", "[a]", "<b>"]
    assert caption == "Two trials."


def test_a_page_has_the_same_cells() -> None:
    page = markup.table(table())
    cells = re.findall(r"<td([^>]*)>(.*?)</td>", page)
    assert [text for _, text in cells] == ["1", "0.5000 ± 0.0100", ARCHITECTURE, "12", "", "[a] &lt;b&gt;"]
    assert [kind for kind, _ in cells[:3]] == ["", ' class="right"', ' class="code"']
    assert "Two trials." in page
    assert "<thead>" not in markup.table(Table(("", ""), [("a", 1)]))


def test_a_table_of_many_rows_says_how_many_it_shows() -> None:
    many = Table(("n",), [(n,) for n in range(5_000)], "Numbers.").first(2)
    assert (many.rows, many.caption) == ([(0,), (1,)], "Numbers. The first 2 of 5,000 rows are shown.")


def test_pages_need_no_rich_and_terminals_no_plotly() -> None:
    for module, other in (("naspipe.report.page", "rich"), ("naspipe.cli.result", "plotly")):
        code = f"import sys, {module}; sys.exit({other!r} in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
