"""Draw configurations at random and compare each with sequential training on one stage, bit for bit.

Run: python benchmarks/equality.py [configurations, 1000 by default]. In one process, about half a second each.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))


def main() -> None:
    """Check configurations 0, 1, 2, ... and say how many were equal; the first that is not ends it."""
    from random_configurations import check_random_configuration

    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    start = time.perf_counter()
    for seed in range(count):
        check_random_configuration(seed)
        if (seed + 1) % 100 == 0:
            print(f"{seed + 1} configurations equal, {time.perf_counter() - start:.0f} s", flush=True)
    print(f"all {count} configurations gave the weights, optimizer states and losses of one stage")


if __name__ == "__main__":
    main()
