"""A question about a plug-in, answered by another process: ``python -m naspipe.testing.elsewhere``."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from naspipe.registry import load_file
from naspipe.testing.check import ConformanceError
from naspipe.testing.subject import Subject

Question = Callable[[Subject], Any]

TIMEOUT = 300
"""Seconds that a process has to answer."""


def ask_elsewhere(question: Question, subject: Subject) -> Any:
    """Return the answer of a new process, which has another hash seed.

    Args:
        question: A function at the top of a module; its result must be JSON.
        subject: The plug-in; the process finds its class by reference and constructs it.

    Raises:
        ConformanceError: The process cannot find the class, or fails.
        PluginError: The class is not at the top of a file, so no other process can find it.
    """
    request = {"question": f"{question.__module__}:{question.__qualname__}", "subject": subject.to_json()}
    # A hash seed other than here, so that results that depend on the order of a set differ.
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "request.json", Path(folder) / "answer.json"
        files[0].write_text(json.dumps(request), encoding="utf-8")
        command = [sys.executable, "-W", "ignore", "-m", "naspipe.testing.elsewhere", *map(str, files)]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT)
        except subprocess.TimeoutExpired as error:
            raise ConformanceError(f"another process must answer, but did not within {TIMEOUT} seconds.") from error
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            raise ConformanceError(
                f"another process must find {subject.reference}, construct it and use it, but: {last[0]}"
            )
        return json.loads(files[1].read_text(encoding="utf-8"))


def _answer(request: Mapping[str, Any]) -> Any:
    module, _, name = request["question"].partition(":")
    question: Question = getattr(importlib.import_module(module), name)
    return question(_subject(request["subject"]))


def _subject(data: Mapping[str, Any]) -> Subject:
    task, space = (None if data[name] is None else _subject(data[name]) for name in ("task", "space"))
    return Subject(_class(data["reference"], data["file"]), data["parameters"], task, space)


def _class(reference: str, file: str) -> type:
    place, _, name = reference.rpartition(":")
    if place.endswith(".py"):
        module = load_file(Path(place))
    else:
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name != place:
                raise
            # The module of a test is not always importable by its name.
            module = load_file(Path(file))
    found: type = getattr(module, name)
    return found


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(sys.argv[2]).write_text(json.dumps(_answer(given)), encoding="utf-8")
