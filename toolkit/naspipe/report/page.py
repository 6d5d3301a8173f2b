"""The report: one self-contained page that shows what a run has so far."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from naspipe.files import read_json, read_lines, write_text
from naspipe.report import figures

if TYPE_CHECKING:
    from naspipe.runs.run import Run

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1f2937; margin: 0; background: #f8fafc; }
main { max-width: 1040px; margin: 0 auto; padding: 24px 16px 64px; }
h1 { font-size: 1.6rem; margin: 0 0 4px; } h2 { font-size: 1.15rem; margin: 0 0 8px; }
section { background: #fff; border: 1px solid #e2e8f0; border-radius: 10px; padding: 16px 18px;
          margin-top: 18px; overflow-x: auto; }
p.note { color: #475569; margin: 0 0 8px; }
table { border-collapse: collapse; } th, td { text-align: left; padding: 4px 18px 4px 0; }
th { font-weight: 600; color: #475569; }
code, pre { font: 13px/1.45 ui-monospace, monospace; overflow-wrap: anywhere; }
pre { white-space: pre-wrap; margin: 8px 0 0; }
.figures { display: flex; gap: 28px; flex-wrap: wrap; margin: 8px 0; }
.figures div { min-width: 120px; } .figures b { display: block; font-size: 1.5rem; }
.figures span { color: #475569; font-size: .9rem; }
"""


def write_report(run: Run) -> Path:
    """Write the page of a run, whatever phase it is in; returns its path."""
    from plotly.offline import get_plotlyjs

    sections = [
        _summary(run),
        _architecture(run),
        _training(run),
        _search(run),
        _retraining(run),
        _details(run),
    ]
    title = f"NASPipe: {run.path.name or run.path.resolve().name}"
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n"
        f"<script>{get_plotlyjs()}</script></head>\n<body><main>\n"
        f"<h1>{html.escape(title)}</h1>\n{''.join(sections)}</main></body></html>\n"
    )
    write_text(run.folder.report, page)
    return run.folder.report


def _section(title: str, *parts: str) -> str:
    body = "\n".join(part for part in parts if part)
    return f"<section><h2>{html.escape(title)}</h2>\n{body}\n</section>\n"


def _plot(figure: Any, name: str) -> str:
    text: str = figure.to_html(
        full_html=False, include_plotlyjs=False, div_id=name, config={"responsive": True}
    )
    return text


def _note(text: str) -> str:
    return f'<p class="note">{html.escape(text)}</p>'


def _table(rows: Sequence[Sequence[object]], head: Sequence[str] = ()) -> str:
    def line(cells: Sequence[object], tag: str) -> str:
        return "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells)

    top = f"<tr>{line(head, 'th')}</tr>" if head else ""
    return f"<table>{top}{''.join(f'<tr>{line(row, "td")}</tr>' for row in rows)}</table>"


def _format(value: object) -> str:
    if isinstance(value, float):
        return f"{int(value):,}" if value.is_integer() and abs(value) > 1 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _summary(run: Run) -> str:
    config = run.config
    stages = {
        "supernet trained": run.folder.supernet.exists(),
        "search finished": run.folder.best_architecture.exists(),
        "best subnet retrained": run.folder.best_metrics.exists(),
    }
    numbers = []
    if stages["best subnet retrained"]:
        metrics = run.best_metrics()
        first = config.search.objectives[0]
        shown = [(f"test {name}", value) for name, value in metrics["test"].items()]
        if first in metrics["validation"]:
            shown.append((f"validation {first}", metrics["validation"][first]))
        shown.append(("parameters", metrics["parameters"]))
        numbers = [f"<div><b>{_format(v)}</b><span>{html.escape(k)}</span></div>" for k, v in shown]
    state = "; ".join(name if done else f"not yet: {name}" for name, done in stages.items())
    what = f"Space {config.space.name}, task {config.task.name}, seed {config.seed}."
    return _section(
        "Result", _note(what), f'<div class="figures">{"".join(numbers)}</div>', _note(f"{state}.")
    )


def _architecture(run: Run) -> str:
    if not run.folder.best_architecture.exists():
        return ""
    space, architecture = run.components.space, run.best_architecture()
    record = read_json(run.folder.best_architecture)
    return _section(
        "Best architecture",
        f"<code>{html.escape(space.format(architecture))}</code>",
        _plot(figures.architecture_figure(space.graph(architecture)), "architecture"),
        _note(f"Found in trial {record['trial']}; scores with the supernet's weights:"),
        _table([(name, _format(value)) for name, value in record["metrics"].items()]),
    )


def _training(run: Run) -> str:
    records = list(read_lines(run.folder.training_metrics))
    if not records:
        return ""
    distinct = len({str(record["architecture"]) for record in records})
    subnets = f"{len(records):,} of {run.config.training.subnets:,} subnets trained"
    return _section(
        "Supernet training",
        _note(f"{subnets}, {distinct:,} of them distinct; sampler {run.config.sampler.name}."),
        _plot(figures.training_curve([record["loss"] for record in records]), "training"),
        _note("How often each option was trained:"),
        _plot(
            figures.option_counts(
                run.components.space, [record["architecture"] for record in records]
            ),
            "options",
        ),
    )


def _search(run: Run) -> str:
    trials = run.trials()
    if not trials:
        return ""
    space, objectives = run.components.space, run.components.objectives
    texts = [space.format(trial.architecture) for trial in trials]
    best = None
    if run.folder.best_architecture.exists():
        best = read_json(run.folder.best_architecture)["trial"]
    failed = [trial for trial in trials if trial.reason is not None]
    plots = [
        _plot(figures.search_history(trials, objective, texts, best), f"search-{objective.name}")
        for objective in objectives
    ]
    if len(objectives) > 1:
        plots.append(_plot(figures.pareto_figure(trials, objectives, texts, best), "pareto"))
    reasons = _table([(t.index, texts[t.index], t.reason) for t in failed], ("trial", "", "reason"))
    strategy = run.config.search.strategy.name
    return _section(
        "Search",
        _note(f"{len(trials)} architectures evaluated by {strategy}, {len(failed)} failed."),
        *plots,
        reasons if failed else "",
    )


def _retraining(run: Run) -> str:
    if not run.folder.best_metrics.exists():
        return ""
    metrics = run.best_metrics()
    names = list(metrics["test"])
    rows = [
        (split, *(_format(metrics[split][name]) for name in names))
        for split in ("validation", "test")
    ]
    settings = run.config.retrain
    start = "fresh weights" if settings.init == "scratch" else "the supernet's weights"
    return _section(
        "Retrained best subnet",
        _note(f"{settings.epochs} epochs from {start}; the test split was used once, at the end."),
        _table(rows, ("split", *names)),
        _note(f"Weights: {run.folder.best_model.relative_to(run.path)}"),
    )


def _details(run: Run) -> str:
    environment = read_json(run.folder.environment)
    packages = environment.pop("packages")
    rows = [*environment.items(), *packages.items()]
    return _section(
        "How it was made",
        f"<details><summary>Configuration</summary><pre>{html.escape(run.config.to_yaml())}</pre></details>",
        f"<details><summary>Environment</summary>{_table(rows)}</details>",
    )
