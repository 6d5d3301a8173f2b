"""The report: one self-contained page on a run, finished or not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from naspipe.errors import NaspipeError
from naspipe.files import write_text
from naspipe.report import sections
from naspipe.report.markup import problem, section, standalone_page
from naspipe.report.pipeline import pipeline
from naspipe.report.ranking import ranking
from naspipe.report.retraining import retraining
from naspipe.report.search import search

if TYPE_CHECKING:
    from naspipe.results.view import RunView

_SECTIONS = {
    "Result": sections.result,
    "Best architecture": sections.architecture,
    "Supernet training": sections.training,
    "Pipeline": pipeline,
    "Search": search,
    "Ranking": ranking,
    "Retraining": retraining,
    "How it was made": sections.details,
}


def write_report(run: RunView) -> Path:
    """Write the page of a run, whatever phase it is in; returns its path."""
    title = f"NASPipe: {run.path.name or run.path.resolve().name}"
    body = []
    for name, content in _SECTIONS.items():
        contents: list[str] = []
        try:
            for element in content(run):
                contents.append(element)
        except NaspipeError as error:
            # A damaged file must not hide the rest of the run, nor the section up to there.
            contents.append(problem(f"The rest of this section cannot be shown: {error}"))
        if contents:
            body.append(section(name, *contents))
    write_text(run.folder.report, standalone_page(title, body))
    return run.folder.report
