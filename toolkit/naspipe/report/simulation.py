"""The page of a simulation: the bubble of executors and samplers against the number of stages."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from naspipe.files import write_text
from naspipe.report.canvas import COLORS, INK, new_figure
from naspipe.report.markup import note, plot, section, standalone_page, table
from naspipe.report.table import Table, number

SimulationRow = Mapping[str, Any]
"""One simulation, by the keys of ``naspipe.pipeline.simulation.COLUMNS``."""

_LINE = ("executor", "sampler", "microbatches", "segments", "delay")
_COLUMNS = {
    "space": "space", "executor": "executor", "sampler": "sampler", "microbatches": "micro-batches",
    "segments": "segments", "delay": "delay", "distance": "distance", "stages": "stages",
    "subnets": "subnets",
}  # fmt: skip
# These tell lines of one colour apart, once the colours start again.
_SYMBOLS, _DASHES = ("circle", "square", "diamond", "cross"), ("solid", "dash", "dot", "dashdot")
_HEIGHT, _LEGEND_ROW = 300, 24


def simulation_figure(rows: Sequence[SimulationRow]) -> Any:
    """Return a plotly figure of the mean bubble against the number of stages, a subplot for each space.

    Each executor, sampler, number of micro-batches and segments, and delay has a line; its bars span the
    least and the greatest bubble over the seeds.

    Args:
        rows: One for each simulation, with the keys ``space``, ``executor``, ``sampler``, ``stages``,
            ``microbatches``, ``segments``, ``seed`` and ``bubble``, and perhaps ``delay``; others do not
            matter. At least one.
    """
    spaces = _values(rows, ("space",))
    lines = _values(rows, _LINE)
    stages = sorted({row["stages"] for row in rows})
    figure = new_figure(90 + _HEIGHT * len(spaces) + _LEGEND_ROW * len(lines), "stages", "bubble")
    figure.set_subplots(
        rows=len(spaces), cols=1, shared_xaxes=True, vertical_spacing=min(0.12, 60 / _HEIGHT / len(spaces)),
        subplot_titles=[html.escape(str(space[0])) for space in spaces],
    )  # fmt: skip
    groups = group_rows(rows, ("space", *_LINE, "stages"))
    for place, space in enumerate(spaces):
        for index, line in enumerate(lines):
            bubbles = {
                count: [row["bubble"] for row in groups[*space, *line, count]]
                for count in stages
                if (*space, *line, count) in groups
            }
            if bubbles:
                _add_line(figure, place, index, _label(line, lines), bubbles)
    figure.update_xaxes(
        type="category", categoryorder="array", categoryarray=[str(count) for count in stages],
        range=[-0.3, len(stages) - 0.7], fixedrange=True,
    )  # fmt: skip
    font = {"size": 13}
    figure.update_xaxes(title=None)
    figure.update_xaxes(title={"text": "stages", "standoff": 10, "font": font}, row=len(spaces))
    highest = max(max(row["bubble"] for row in rows), 0.1)
    figure.update_yaxes(
        title={"text": "bubble", "standoff": 10, "font": font}, range=[0, min(1, 1.08 * highest)],
        automargin=True, fixedrange=True,
    )  # fmt: skip
    figure.update_annotations(font={"size": 14, "color": INK})
    # Below the plot, where it may grow with the number of lines.
    figure.update_layout(
        legend={"yref": "container", "y": 0, "yanchor": "bottom"}, showlegend=len(lines) > 1,
        margin={"b": 60 + _LEGEND_ROW * len(lines) if len(lines) > 1 else 60}, hovermode="closest",
    )  # fmt: skip
    return figure


def write_simulation(rows: Sequence[SimulationRow], path: Path, caption: str) -> None:
    """Write a self-contained page with the figure and the table of means.

    Args:
        rows: As for ``simulation_figure``, with ``makespan`` and ``bound`` as well, and perhaps
            ``distance`` and ``subnets``.
        path: File to write.
        caption: A sentence on the simulation, or its command.
    """
    spread = "Mean over the seeds; the bars span the least and the greatest."
    body = [
        section("Bubble", plot(simulation_figure(rows), "simulation", f"{caption.rstrip('.')}. {spread}")),
        section("Means", *_means(rows)),
    ]
    write_text(path, standalone_page("NASPipe simulation", body, "main { max-width: 1200px; }"))


def _add_line(figure: Any, place: int, index: int, label: str, bubbles: Mapping[int, Sequence[float]]) -> None:
    """Add a line to a subplot; its name stands in the legend once."""
    means = [fmean(values) for values in bubbles.values()]
    cycle, color = divmod(index, len(COLORS))
    known = any(trace.name == label for trace in figure.data)
    figure.add_scatter(
        x=[str(count) for count in bubbles], y=means, mode="lines+markers", name=label, legendgroup=label,
        showlegend=not known, cliponaxis=False, row=place + 1, col=1,
        line={"color": COLORS[color], "width": 2, "dash": _DASHES[cycle % len(_DASHES)]},
        marker={"size": 8, "symbol": _SYMBOLS[cycle % len(_SYMBOLS)]},
        error_y={
            "type": "data", "symmetric": False, "thickness": 1.2, "width": 4,
            "array": [max(v) - mean for v, mean in zip(bubbles.values(), means, strict=True)],
            "arrayminus": [mean - min(v) for v, mean in zip(bubbles.values(), means, strict=True)],
        },
        hovertext=[
            f"{label}<br>stages {count}: {mean:.3f}, from {min(v):.3f} to {max(v):.3f} over {len(v)} seeds"
            for (count, v), mean in zip(bubbles.items(), means, strict=True)
        ],
        hovertemplate="%{hovertext}<extra></extra>",
    )  # fmt: skip


def _label(line: tuple[Any, ...], lines: Sequence[tuple[Any, ...]]) -> str:
    """Return a line's executor and sampler, and those of its other settings that differ between the lines."""
    executor, sampler, microbatches, segments, delay = line
    differs = [len(set(values)) > 1 for values in zip(*lines, strict=True)]
    parts = [f"{executor}, {sampler}"]
    if differs[2]:
        parts.append(f"{microbatches} micro-batch{'es' if microbatches > 1 else ''}")
    if differs[3]:
        parts.append(f"{segments} segment{'s' if segments > 1 else ''}")
    if differs[4]:
        parts.append("no delay" if delay is None else f"delay {delay}")
    return html.escape(", ".join(parts))


def _means(rows: Sequence[SimulationRow]) -> list[str]:
    """Return the table of means over the seeds, and a note of the settings that all rows share."""
    spaces, lines = _values(rows, ("space",)), _values(rows, _LINE)
    groups = sorted(
        group_rows(rows, ("space", *_LINE, "stages")).items(),
        key=lambda item: (spaces.index(item[0][:1]), lines.index(item[0][1:-1]), item[0][-1]),
    )
    same = {key: rows[0].get(key) for key in _COLUMNS if len(_values(rows, (key,))) == 1}
    body: list[list[object]] = []
    for _, members in groups:
        bubbles = [row["bubble"] for row in members]
        ratios = [row["makespan"] / row["bound"] for row in members if row.get("bound")]
        body.append(
            [
                *(_text(members[0].get(key)) for key in _COLUMNS if key not in same),
                len(members),
                f"{fmean(bubbles):.3f}",
                f"{min(bubbles):.3f}\u00a0to\u00a0{max(bubbles):.3f}",
                number(round(fmean(row["makespan"] for row in members))),
                f"{fmean(ratios):.3f}" if ratios else "-",
            ]
        )
    head = [name for key, name in _COLUMNS.items() if key not in same]
    head += ["seeds", "bubble", "least to greatest", "makespan", "makespan / bound"]
    shared = ", ".join(f"{_COLUMNS[key]} {_text(value)}" for key, value in same.items() if value is not None)
    return [
        note(f"In all rows: {shared}.") if shared else "",
        table(Table(head, body, "Means over the seeds; makespans in ticks.")),
    ]


def _text(value: object) -> str:
    return "-" if value is None else number(value)


def _values(rows: Iterable[SimulationRow], keys: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the combinations of values that some keys have, each once, in the order in which they first occur."""
    return list(dict.fromkeys(tuple(row.get(key) for key in keys) for row in rows))


def group_rows(rows: Iterable[SimulationRow], keys: Sequence[str]) -> dict[tuple[Any, ...], list[SimulationRow]]:
    """Return the rows by their values of some keys, in the order in which these values first occur."""
    groups: dict[tuple[Any, ...], list[SimulationRow]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    return groups
