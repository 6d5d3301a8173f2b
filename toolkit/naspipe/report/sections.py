"""The sections of a report; each says what the run has so far, or that it has nothing yet."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from naspipe.report import figures
from naspipe.report.drawing import architecture_figure
from naspipe.report.markup import note, number, plot, problem, table
from naspipe.report.options import option_counts
from naspipe.report.records import read_records

if TYPE_CHECKING:
    from naspipe.runs.run import Run


def result(run: Run) -> Iterator[str]:
    """Yield the scores and how far the run is."""
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
    phases = (
        ("supernet trained", run.folder.supernet, run.folder.subnets(), config.training.subnets),
        (
            "subnets searched",
            run.folder.best_architecture,
            run.folder.evaluated(run.components.space, run.components.objectives),
            config.search.budget.trials,
        ),
        ("best subnet retrained", run.folder.best_metrics, run.folder.epochs(), config.retrain.epochs),
    )
    rows = []
    for name, last, lines, total in phases:
        done = len(read_records(lines)[0])
        state = "yes" if last.exists() else f"not finished, {_of(done, total)}" if done else "not yet"
        rows.append((name, state))
    if any(state != "yes" for _, state in rows):
        yield table(rows)


def _of(done: int, total: int | None) -> str:
    return f"{done:,} so far" if total is None else f"{done:,} of {total:,}"


def architecture(run: Run) -> Iterator[str]:
    """Yield the best architecture: text, drawing and scores."""
    if not run.folder.best_architecture.exists():
        yield note("The search has not finished.")
        return
    space, best = run.components.space, run.best_architecture()
    record = run.folder.best_trial()
    graph = space.graph(best)
    yield f"<p><code>{html.escape(space.format(best))}</code></p>"
    caption = f"The best architecture, found in trial {record.trial}. {graph.note}".rstrip()
    yield plot(architecture_figure(graph), "architecture", caption, narrow=True)
    scores = [(name, number(value)) for name, value in record.metrics.items()]
    yield table(scores, caption="Scores in the search, with the supernet's weights.")


def training(run: Run) -> Iterator[str]:
    """Yield the losses of the subnets, and how often each option was trained."""
    records, damage = read_records(run.folder.subnets())
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


def retraining(run: Run) -> Iterator[str]:
    """Yield the loss of the epochs, and the final scores."""
    records, damage = read_records(run.folder.epochs())
    yield problem(damage)
    finished = run.folder.best_metrics.exists()
    if not records and not finished:
        yield note("The best subnet has not been retrained yet.")
        return
    settings = run.config.retrain
    start = "fresh weights" if settings.init == "scratch" else "the supernet's weights"
    epochs = f"{settings.epochs:,}" if finished else f"{len(records):,} of {settings.epochs:,}"
    yield note(f"{epochs} epochs from {start}.")
    if len(records) > 1:
        losses = [record.loss for record in records]
        yield plot(figures.retraining_curve(losses), "retraining", "Training loss of the best subnet.")
    if finished:
        metrics = run.best_metrics()
        names = list({**metrics["test"], **metrics["validation"]})
        rows = [
            (split, *(number(metrics[split][n]) if n in metrics[split] else "" for n in names))
            for split in ("validation", "test")
        ]
        yield table(
            rows,
            ("split", *names),
            "Scores of the retrained subnet; the test split was used once, at the end.",
        )
        yield note(f"Weights: {run.folder.best_model.relative_to(run.path)}")


def details(run: Run) -> Iterator[str]:
    """Yield the configuration and the environment."""
    yield (f"<details><summary>Configuration</summary><pre>{html.escape(run.config.to_yaml())}</pre></details>")
    rows = list(_flat(run.folder.facts()))
    yield f"<details><summary>Environment</summary>{table(rows)}</details>"


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield name and text of nested values."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, "" if name == "packages" else f"{prefix}{name}.")
        elif isinstance(value, list):
            yield f"{prefix}{name}", ", ".join(map(str, value)) or "none"
        else:
            yield f"{prefix}{name}", "none" if value is None else str(value)
