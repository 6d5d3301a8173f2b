"""Measure schedules: the tables of docs/schedules.md. Run: python benchmarks/schedules.py [--quick].

Unit costs (a block's forward 1 tick, backward 2, update 0), static partition, 600 subnets, seeds 0 to 9. The
figures are counts of ticks, so they are the same on every machine; it takes about 25 minutes on two cores.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
from collections.abc import Iterable
from typing import Any

from naspipe.pipeline.abstract import PRESETS
from naspipe.pipeline.simulation import Simulation

SPACES = list(PRESETS)
SEEDS = 2 if "--quick" in sys.argv else 10

# Label, executor, sampler, micro-batches, options.
ROWS: list[tuple[str, str, str, int, dict[str, Any]]] = [
    ("gpipe, M = 1", "gpipe", "uniform", 1, {}),
    ("gpipe, M = 8", "gpipe", "uniform", 8, {}),
    ("gpipe bulk 8, M = 1", "gpipe:bulk=8", "uniform", 1, {}),
    ("pipedream (stale), M = 1", "pipedream", "uniform", 1, {}),
    ("csp backward-first, uniform, M = 1", "csp:priority=backward", "uniform", 1, {}),
    ("csp, uniform, M = 1", "csp", "uniform", 1, {}),
    ("csp, uniform, M = 4", "csp", "uniform", 4, {}),
    ("csp, uniform, M = 8", "csp", "uniform", 8, {}),
    ("csp, fair, M = 1", "csp", "fair", 1, {}),
    ("csp, spaced d = S, M = 1", "csp", "spaced", 1, {}),
    ("csp, spaced d = S/4, M = 4", "csp", "spaced", 4, {}),
]
SEGMENTS = {4: (1, 2, 3, 12), 8: (1, 2, 3, 6)}


def run(simulation: Simulation) -> list[dict[str, Any]]:
    """Run a simulation, in a worker process."""
    return list(simulation.run())


def mean(rows: Iterable[dict[str, Any]]) -> str:
    """Return the mean bubble and the mean of makespan / bound."""
    rows = list(rows)
    ratio = statistics.mean(row["makespan"] / row["bound"] for row in rows)
    return f"{statistics.mean(row['bubble'] for row in rows):.3f} / {ratio:.2f}"


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def main() -> None:
    """Print the tables."""
    with multiprocessing.Pool(2) as pool:
        for stages in (4, 8, 16):
            jobs = [
                Simulation([space], [executor], [sampler], [stages], [microbatches], seeds=SEEDS, **options)
                for _, executor, sampler, microbatches, options in ROWS
                for space in SPACES
            ]
            results = pool.map(run, jobs, chunksize=1)
            cells = [mean(result) for result in results]
            width = len(SPACES)
            lines = [[row[0], *cells[i * width : (i + 1) * width]] for i, row in enumerate(ROWS)]
            print(f"\n{stages} stages: mean bubble / mean of makespan over bound\n")
            print(table(["", *SPACES], lines), flush=True)
        print("\nSegments: csp, uniform, M = 1, nlp.c0; makespan over bound, mean and standard deviation\n")
        for stages, counts in SEGMENTS.items():
            jobs = [Simulation(["nlp.c0"], ["csp"], ["uniform"], [stages], segments=[k], seeds=SEEDS) for k in counts]
            ratios = [[row["makespan"] / row["bound"] for row in rows] for rows in pool.map(run, jobs, chunksize=1)]
            cells = [f"{statistics.mean(r):.4f} +- {statistics.pstdev(r):.4f}" for r in ratios]
            print(table([f"{stages} stages", *map(str, counts)], [["makespan / bound", *cells]]), flush=True)
        print("\nDelay: csp, spaced, always-active layers at both ends, nlp.c3, 8 stages; mean bubble\n")
        delays = (0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 32)
        lines = []
        for microbatches in (1, 2, 4):
            jobs = [
                Simulation(
                    ["nlp.c3"], ["csp"], ["spaced"], [8], [microbatches], delays=[delay], seeds=SEEDS, distance=16
                )
                for delay in delays
            ]
            lines.append([f"M = {microbatches}", *(mean(rows).split(" /")[0] for rows in pool.map(run, jobs))])
        print(table(["D", *map(str, delays)], lines), flush=True)


if __name__ == "__main__":
    main()
