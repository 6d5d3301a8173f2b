"""``naspipe plugins check``: the checks of a plug-in and their verdicts."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from naspipe.cli.output import say
from naspipe.config.source import Source, apply_overrides, parse_plugin_text
from naspipe.errors import ConfigError, InputError, NaspipeWarning
from naspipe.registry import registries_of
from naspipe.testing.check import Result
from naspipe.testing.kit import check_plugin
from naspipe.testing.noise import Noise
from naspipe.testing.subject import Subject, as_subject
from naspipe.training.context import load_config

_WORDS = {"holds": "holds  ", "fails": "FAILS  ", "skipped": "skipped"}
_INDENT = " " * 9


def show_conformance(
    plugin: str | None,
    overrides: Sequence[str],
    task: str | None,
    inputs: str | None,
    space: str | None,
    config: Path | None,
) -> bool:
    """Check plug-ins and print the verdicts; return whether everything holds.

    Args:
        plugin: Name or reference, with parameters as in ``gpipe:bulk=4``; None: every plug-in of the configuration.
        overrides: More parameters, as ``key=value``.
        task: The task that a space is run on, with parameters.
        inputs: The shape of noise that a space is run on, as in ``3,32,32``.
        space: The space that a task, an objective, a sampler or a strategy is checked with, with parameters.
        config: A run's configuration that gives task and space.

    Raises:
        InputError: Something cannot be found or constructed, or options do not go together.
    """
    given = [name for name, value in (("--task", task), ("--inputs", inputs), ("--config", config)) if value]
    if len(given) > 1 and "--inputs" in given:
        raise InputError(f"the batches of a space must come from one place, but {' and '.join(given)} were given.")
    if plugin is None and config is None:
        raise InputError("a plug-in must be given, as in naspipe plugins check my_space.py:MySpace, or --config.")
    known = _of_config(config) if config is not None else {}
    batches = _noise(inputs) if inputs is not None else task if task is None else _parse(task, "task")
    batches = batches or known.get("task")
    fitting = _parse(space, "space") if space is not None else known.get("space")
    if plugin is None:
        if overrides:
            raise InputError("--set gives a plug-in's parameters, but no plug-in is given. Change the configuration.")
        subjects = list(known.values())
    else:
        subjects = list(_named(plugin, overrides))
    everything = True
    for number, subject in enumerate(subjects):
        if number:
            say("")
        subject.task, subject.space = batches, fitting if subject.kind != "space" else None
        _warn_of_no_effect(subject, task or inputs, space)
        results = check_plugin(subject)
        say(_title(subject))
        everything = _show(results) and everything
    return everything


def _of_config(path: Path) -> dict[str, Subject]:
    """Return the plug-ins of a configuration by their kinds."""
    config = load_config(path)
    sections: dict[str, tuple[str, dict[str, Any]]] = {
        kind: (section.name, section.parameters)
        for kind, section in (
            ("space", config.space),
            ("task", config.task),
            ("sampler", config.sampler),
            ("strategy", config.search.strategy),
        )
    }
    sections["executor"] = config.executor.name, config.executor.options
    return {kind: as_subject(Subject(name, values), kind) for kind, (name, values) in sections.items()}


def _parse(text: str, kind: str) -> Subject:
    name, values = parse_plugin_text(text)
    return as_subject(Subject(name, values), kind)


def _named(text: str, overrides: Sequence[str]) -> Iterator[Subject]:
    """Yield a plug-in by its name; several if it is known in several kinds."""
    name, values = parse_plugin_text(text)
    source = Source(data=values)
    apply_overrides(source, overrides)
    if source.problems:
        raise ConfigError(source.problems)
    subjects = [as_subject(Subject(name, source.data), registry.kind) for registry in registries_of(name)]
    # A name may be known in several kinds, of which only one takes these parameters.
    fitting = [subject for subject in subjects if _can_be_made(subject)]
    yield from fitting or subjects


def _can_be_made(subject: Subject) -> bool:
    try:
        subject.make()
    except InputError:
        return False
    return True


def _noise(text: str) -> Subject:
    parts = text.replace("x", ",").split(",")
    if not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise InputError(f"--inputs must be the shape of one sample, as in 3,32,32, but is {text!r}.")
    return Subject(Noise, {"shape": [int(part) for part in parts]})


def _warn_of_no_effect(subject: Subject, batches: str | None, space: str | None) -> None:
    idle = []
    if batches is not None and subject.kind not in ("space", "objective"):
        idle.append("--task and --inputs have")
    if space is not None and subject.kind in ("space", "executor"):
        idle.append("--space has")
    for text in idle:
        warnings.warn(f"{text} no effect on the checks of a {subject.kind}.", NaspipeWarning, stacklevel=3)


def _title(subject: Subject) -> str:
    values = "".join(f":{key}={value}" for key, value in subject.parameters.items())
    title = f"{subject.kind} {subject.plugin}{values}"
    if subject.kind in ("space", "objective"):
        title += f", on batches of task {subject.task_subject.cls.__name__}"
    if subject.space_subject is not None and subject.kind not in ("executor", "space"):
        title += f", with space {subject.space_subject.cls.__name__}"
    return title


def _show(results: Iterator[Result]) -> bool:
    """Print each result as it comes, and a summary; return whether nothing fails."""
    counts = dict.fromkeys(_WORDS, 0)
    for result in results:
        counts[result.verdict] += 1
        say(f"{_WORDS[result.verdict]}  {result.check.shows}")
        if result.reason:
            lines = [f"{result.check.name}: {result.reason}"] if result.verdict == "fails" else [result.reason]
            for line in "\n".join(lines).splitlines():
                say(textwrap.indent(textwrap.fill(line, 110, break_long_words=False), _INDENT))
    skipped = f", {counts['skipped']} skipped" if counts["skipped"] else ""
    verb = "fails" if counts["fails"] == 1 else "fail"
    say(f"{sum(counts.values())} checks: {counts['holds']} hold, {counts['fails']} {verb}{skipped}.")
    return not counts["fails"]
