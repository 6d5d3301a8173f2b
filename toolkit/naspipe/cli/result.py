"""The end of a run: which architecture won, how good it is, and what to do next."""

from __future__ import annotations

import json
import shlex

from naspipe.cli.output import format_metrics, say
from naspipe.cli.retraining_table import show_rows
from naspipe.results.view import RunView


def show_result(run: RunView) -> None:
    """Print which architecture won, how good it is, where the model lies and what to do next."""
    metrics = run.best_metrics()
    searched = run.folder.best_trial()
    if len(run.rows()) > 1:
        show_rows(run)
    again = f"naspipe run {shlex.quote(str(run.folder.config))} --set seed={run.config.seed + 1}"
    code = f"import naspipe; print(naspipe.Run.open({json.dumps(str(run.path))}).best())"
    lines = [
        ("Best architecture", metrics["text"]),
        *([("Best in the search", searched.text)] if searched.trial != metrics["trial"] else []),
        ("Parameters", f"{metrics['parameters']:,}"),
        ("Validation", format_metrics(metrics["validation"])),
        ("Test", format_metrics(metrics["test"])),
        ("Model", run.folder.best_model),
        ("Report", run.folder.report),
        *([("Search ended early", searched.note)] if searched.note else []),
        ("Next", f"python -c {shlex.quote(code)}"),
        ("", again),
    ]
    for title, value in lines:
        say(f"{title:<18} {value}")
