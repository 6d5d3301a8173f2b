"""The results of a run, as its commands print them: the winner, the retrained rows, and rank checks."""

from __future__ import annotations

import json
import shlex

from naspipe.cli.output import say, show_table
from naspipe.records import RankRecord
from naspipe.report.ranking import ranking_table
from naspipe.report.retraining import score_tables
from naspipe.report.table import metrics_text
from naspipe.results.view import RunView
from naspipe.search.ranking import describe_correlation


def show_result(run: RunView) -> None:
    """Print which architecture won, how good it is, where the model lies and what to do next."""
    metrics = run.best_metrics()
    searched = run.folder.best_trial()
    if len(run.rows()) > 1:
        for table in score_tables(run, run.retrained(), brief=True):
            show_table(table)
            say("")
    again = f"naspipe run {shlex.quote(str(run.folder.config))} --set seed={run.config.seed + 1}"
    code = f"import naspipe; print(naspipe.Run.open({json.dumps(str(run.path))}).best())"
    lines = [
        ("Best architecture", metrics["text"]),
        *([("Best in the search", searched.text)] if searched.trial != metrics["trial"] else []),
        ("Parameters", f"{metrics['parameters']:,}"),
        ("Validation", metrics_text(metrics["validation"])),
        ("Test", metrics_text(metrics["test"])),
        ("Model", run.folder.best_model),
        ("Report", run.folder.report),
        *([("Search ended early", searched.note)] if searched.note else []),
        ("Next", f"python -c {shlex.quote(code)}"),
        ("", again),
    ]
    for title, value in lines:
        say(f"{title:<18} {value}")


def show_ranking(record: RankRecord) -> None:
    """Print the architectures in the supernet's order, how well it agrees with the truth, and the warnings."""
    show_table(ranking_table(record))
    say(f"Kendall   {describe_correlation(record.kendall)}")
    say(f"Spearman  {describe_correlation(record.spearman)}")
    say("+1 is the order of the truth, 0 none, -1 the reverse; with bootstrap 95 % intervals.")
    for warning in record.warnings:
        say(f"Warning: {warning}")
