"""The true accuracies of NAS-Bench-201 as a table: those of every cell, trained on CIFAR-10.

The numbers are from the package ``analog-nasbench`` (extra ``nasbench``; Benmeziane et al., "AnalogNAS-Bench", 2025).
Its file is a pickle, so it is read by an unpickler that accepts the file's two classes only.
"""

from __future__ import annotations

import importlib.util
import pickle
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from naspipe import Measure, Subnet
from naspipe.errors import InputError
from naspipe.records import Direction
from naspipe.space import Architecture
from naspipe_spaces.nasbench201 import EDGES

OPERATIONS_BY_NUMBER = ("skip_connect", "none", "nor_conv_3x3", "nor_conv_1x1", "avg_pool_3x3")
"""The operations, by their numbers in the table."""

EDGES_OF_TABLE = ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
"""The edges, in the order of the table."""

CELLS = 5 ** len(EDGES)


class _Record:
    """The attributes of an object of the pickle, without its class."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


class _Unpickler(pickle.Unpickler):
    """Accepts the two classes of the file only."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in {("analognasbench.data", "Architecture"), ("analognasbench.data", "DriftMeasurement")}:
            raise pickle.UnpicklingError(f"it must hold only its own two classes, but names {module}.{name}")
        return _Record


@cache
def read_table() -> dict[tuple[str, ...], float]:
    """Return the CIFAR-10 test accuracy of every cell, in percent, by its operations in the order of ``EDGES``.

    Raises:
        InputError: The package is not installed, or its file is damaged.
    """
    spec = importlib.util.find_spec("analognasbench")
    if spec is None or not spec.submodule_search_locations:
        raise InputError("the table of NAS-Bench-201 needs analog-nasbench. Run pip install 'naspipe[nasbench]'.")
    path = Path(spec.submodule_search_locations[0]) / "data.anb"
    try:
        with path.open("rb") as file:
            records = _Unpickler(file).load()
        table = {_operations(numbers): float(record.baseline_accuracy) for numbers, record in records.items()}
    except (OSError, EOFError, pickle.UnpicklingError, AttributeError, TypeError, ValueError, IndexError) as error:
        raise InputError(
            f"{path} must be the table of NAS-Bench-201, but: {error}. Reinstall analog-nasbench."
        ) from error
    if len(table) != CELLS:
        raise InputError(f"{path} must hold all {CELLS:,} cells, but holds {len(table):,}. Reinstall analog-nasbench.")
    return table


def _operations(numbers: tuple[int, ...]) -> tuple[str, ...]:
    by_edge = {edge: OPERATIONS_BY_NUMBER[number] for edge, number in zip(EDGES_OF_TABLE, numbers, strict=True)}
    return tuple(by_edge[edge] for edge in EDGES)


def true_accuracy(architecture: Architecture) -> float:
    """Return the CIFAR-10 test accuracy of an architecture of the tied space, in percent."""
    return read_table()[tuple(str(architecture[f"edge{source}{target}"]) for source, target in EDGES)]


class TrueAccuracy(Measure):
    """CIFAR-10 test accuracy of a NAS-Bench-201 cell after stand-alone training, in percent, from the table."""

    direction: ClassVar[Direction] = "maximize"

    def measure(self, subnet: Subnet) -> float:
        """Read the accuracy from the table.

        Raises:
            InputError: The space is not nasbench201 with ``tied: true``.
        """
        names = [f"edge{source}{target}" for source, target in EDGES]
        if list(subnet.architecture) != names:
            raise InputError(
                "the table of NAS-Bench-201 has one cell for the whole network, so the space must be nasbench201 with "
                f"tied: true, but an architecture here has the decisions {', '.join(subnet.architecture)}."
            )
        return true_accuracy(subnet.architecture)
