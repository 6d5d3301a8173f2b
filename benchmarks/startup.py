"""Measure how long ``import naspipe`` and ``naspipe --help`` take: python benchmarks/startup.py."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

REPEATS = 15


def measure(command: list[str]) -> list[float]:
    """Return the seconds of each repeat, after one that is not counted."""
    times = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return times[1:]


def main() -> None:
    """Print median and range of each, and of an empty interpreter."""
    script = str(Path(sys.executable).with_name("naspipe"))
    for name, command in (
        ("python -c pass", [sys.executable, "-c", "pass"]),
        ("import naspipe", [sys.executable, "-c", "import naspipe"]),
        ("naspipe --help", [script, "--help"]),
    ):
        times = measure(command)
        print(f"{name:<16} median {statistics.median(times):.3f} s, {min(times):.3f} to {max(times):.3f}")


if __name__ == "__main__":
    main()
