"""The sections of a report; each shows the results of the run so far, or says that there are none yet."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from naspipe.report import figures
from naspipe.report.drawing import architecture_figure
from naspipe.report.markup import note, plot, problem, table
from naspipe.report.options import option_counts
from naspipe.report.records import read_records
from naspipe.report.table import Table, number
from naspipe.results.retraining_rows import row_folder

if TYPE_CHECKING:
    from naspipe.records import EpochLine
    from naspipe.results.retraining_rows import RetrainingRow
    from naspipe.results.view import RunView


def result(run: RunView) -> Iterator[str]:
    """Yield the scores, and the phases that are not finished."""
    config = run.config
    yield note(
        f"Space {config.space.name}, task {config.task.name}, sampler {config.sampler.name}, "
        f"search {config.search.strategy.name}, seed {config.seed}."
    )
    if run.folder.best_metrics.exists():
        metrics = run.best_metrics()
        first = config.search.objectives[0]
        shown: list[tuple[str, float]] = [(f"test {name}", value) for name, value in metrics["test"].items()]
        if first in metrics["validation"]:
            shown.append((f"validation {first}", metrics["validation"][first]))
        shown.append(("parameters", metrics["parameters"]))
        cells = [f"<div><b>{number(v)}</b><span>{html.escape(k)}</span></div>" for k, v in shown]
        yield f'<div class="figures">{"".join(cells)}</div>'
    planned = run.rows() if run.folder.best_architecture.exists() else []
    epochs = sum(row.steps(config.retrain.epochs) for row in planned if row.trains)
    phases = (
        ("supernet trained", run.folder.supernet, run.folder.training.subnets(), config.training.subnets),
        (
            "subnets searched",
            run.folder.best_architecture,
            run.folder.evaluated(run.components.space, run.components.objectives),
            config.search.budget.trials,
        ),
        ("best subnets retrained", run.folder.best_metrics, _epochs_of(run, planned), epochs),
    )
    rows = []
    for name, last, lines, total in phases:
        done = len(read_records(lines)[0])
        state = "yes" if last.exists() else f"not finished, {_of(done, total)}" if done else "not yet"
        rows.append((name, state))
    if any(state != "yes" for _, state in rows):
        yield table(Table(("", ""), rows))


def _of(done: int, total: int | None) -> str:
    return f"{done:,} so far" if total is None else f"{done:,} of {total:,}"


def _epochs_of(run: RunView, planned: Sequence[RetrainingRow]) -> Iterator[EpochLine]:
    for row in planned:
        yield from row_folder(run.folder, row).logged()


def architecture(run: RunView) -> Iterator[str]:
    """Yield the best architecture: its text, its drawing and its scores in the search."""
    if not run.folder.best_architecture.exists():
        yield note("The search has not finished.")
        return
    space, chosen = run.components.space, run.folder.best_trial()
    best, trial, metrics = run.best_architecture(), chosen.trial, chosen.metrics
    if run.folder.best_metrics.exists() and run.folder.best_scores().trial != trial:
        scores = run.folder.best_scores()
        best, trial = run.retrained_architecture(), scores.trial
        metrics = next((found.metrics for found in run.trials() if found.index == trial), {})
        by = f", by {scores.chosen_by}" if scores.chosen_by else ""
        yield note(
            f"Of the retrained architectures, that of trial {trial} is best on the validation split{by}. The search "
            f"had found another one best, with the supernet's weights: that of trial {chosen.trial}, {chosen.text}."
        )
    graph = space.graph(best)
    yield f"<p><code>{html.escape(space.format(best))}</code></p>"
    caption = f"The best architecture, found in trial {trial}. {graph.note}".rstrip()
    yield plot(architecture_figure(graph), "architecture", caption, narrow=True)
    yield table(Table(("", ""), metrics.items(), "Scores in the search, with the supernet's weights."))


def training(run: RunView) -> Iterator[str]:
    """Yield the losses of the subnets, and how often each option was trained."""
    records, damage = read_records(run.folder.training.subnets())
    yield problem(damage)
    if not records:
        yield note("No subnet has been trained yet.")
        return
    subnets = [record.architecture for record in records]
    distinct = len({str(subnet) for subnet in subnets})
    yield note(f"{len(records):,} of {run.config.training.subnets:,} subnets trained, {distinct:,} of them distinct.")
    yield plot(
        figures.training_curve([record.loss for record in records if record.loss is not None]),
        "training",
        "Training loss of the subnets, each on one batch with the shared weights.",
    )
    yield plot(
        option_counts(run.components.space, subnets),
        "options",
        "Number of subnets trained with each option of each decision; colours start at zero.",
    )


def details(run: RunView) -> Iterator[str]:
    """Yield the configuration and the environment."""
    yield f"<details><summary>Configuration</summary><pre>{html.escape(run.config.to_yaml())}</pre></details>"
    facts = table(Table(("", ""), _flat(run.folder.facts())))
    yield f"<details><summary>Environment</summary>{facts}</details>"


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield name and text of nested values."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, "" if name == "packages" else f"{prefix}{name}.")
        elif isinstance(value, list):
            yield f"{prefix}{name}", ", ".join(map(str, value)) or "none"
        else:
            yield f"{prefix}{name}", "none" if value is None else str(value)
