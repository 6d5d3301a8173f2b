"""Profiling: what blocks and their candidates really take, measured by training throw-away copies of them.

A short training runs with every block as a stage of its own, so that its recorder times the same code that a run
executes: boundaries, loss and updates included. Its weights are dropped.
"""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median

import numpy as np
from scipy.optimize import nnls

from naspipe import registry
from naspipe.components import build_components
from naspipe.config.schema import RunConfig
from naspipe.errors import NaspipeWarning
from naspipe.pipeline.action import Kind
from naspipe.pipeline.costs import BlockCosts, CostTable
from naspipe.pipeline.scenario import Layout
from naspipe.planning import PROFILE, Planning
from naspipe.search.sampler import Sampler
from naspipe.supernet.supernet import Supernet
from naspipe.tasks.data import Splits
from naspipe.training.determinism import deterministic
from naspipe.training.loop import SupernetTrainer
from naspipe.training.recorder import Recorder

MEASURED = 3
"""How often each option is run and measured; before that, each is run once to warm up."""

Used = tuple[str, ...]
"""The strict layers that a block uses."""


def profile_costs(config: RunConfig, splits: Splits) -> CostTable:
    """Measure what forward, backward and update take for every block and each of its strict layers.

    Args:
        config: The configuration; batch size, micro-batches, precision, device and recompute matter.
        splits: The task's data.

    Returns:
        A table whose ticks are microseconds.
    """
    components = build_components(config)
    space = components.space
    with deterministic(config.training.threads, config.training.device):
        supernet = Supernet(space, config.seed, freeze_always_active=config.training.freeze_always_active)
        options = max(len(decision.options) for decision in space.decisions)
        # A block whose architectures use several layers at once needs as many observations as it has unknowns.
        unknowns = max(sum(layer.strict for layer in block.values()) for block in supernet.layers_by_block)
        count = options + MEASURED * max(options, unknowns)
        # The loss says nothing here, so one that is not finite must not end it.
        training = config.training.model_copy(update={"subnets": count, "on_nonfinite": "skip"})
        planning = Planning(config, components, supernet, CostTable.uniform(len(supernet)))
        scenario, layout = planning.scenario(count, make_sampler=_even_sampler), Layout(len(supernet))
        sequential = registry.executors.get("sequential")()
        sampler = _even_sampler()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NaspipeWarning)
            sampler.start(space, config.seed)
        trainer = SupernetTrainer(
            supernet, components.task, splits.train, sampler, scenario.planner(sequential, layout),
            scenario.cuts(layout), training, config.seed, recompute=config.executor.recompute,
        )  # fmt: skip
        recorder = Recorder(config.training.device)
        trainer.run(lambda record: None, recorder)
    drawn = [
        [tuple(layer.name for layer in row if layer.strict) for row in subnet.layers] for subnet in scenario.subnets()
    ]
    return _table(recorder, drawn, supernet, options)


def _even_sampler() -> Sampler:
    """Return the sampler that draws every option equally often."""
    sampler: Sampler = registry.samplers.get("fair")()
    return sampler


def _table(recorder: Recorder, drawn: list[list[Used]], supernet: Supernet, warmup: int) -> CostTable:
    """Return the table that fits what was recorded after the warm-up."""
    times: list[dict[tuple[Kind, Used], list[int]]] = [{} for _ in supernet]
    for planned, start, end, _ in recorder.rows:
        action = planned.action
        if action.subnet >= warmup:
            times[action.stage].setdefault((action.kind, drawn[action.subnet][action.stage]), []).append(end - start)
    blocks = []
    unseen = 0
    for index, block in enumerate(times):
        fitted = [
            _fit({used: median(values) for (kind, used), values in block.items() if kind is wanted})
            for wanted in (Kind.FORWARD, Kind.BACKWARD, Kind.UPDATE)
        ]
        names = sorted({name for _, layers in fitted for name in layers})
        strict = [layer.name for layer in supernet.layers_by_block[index].values() if layer.strict]
        unseen += len(set(strict) - set(names))
        base = [round(value) for value, _ in fitted]
        blocks.append(
            BlockCosts(
                base=(max(1, base[0]), max(1, base[1]), base[2]),
                layers={
                    name: (round(fitted[0][1][name]), round(fitted[1][1][name]), round(fitted[2][1][name]))
                    for name in names
                },
            )
        )
    if unseen:
        warnings.warn(
            f"executor.costs: profile did not meet {unseen} layers of the space, which are planned as if they took no "
            "time of their own. They are used by few architectures, so that the plan is hardly worse.",
            NaspipeWarning,
            stacklevel=4,
        )
    return CostTable(blocks=tuple(blocks))


def _fit(seen: Mapping[Used, float]) -> tuple[float, dict[str, float]]:
    """Return what a block takes at least and what each layer adds, by non-negative least squares.

    Args:
        seen: Time of a block for every set of layers that it was run with.
    """
    names = sorted({name for used in seen for name in used})
    matrix = np.array([[1.0, *(float(name in used) for name in names)] for used in seen])
    solution, _ = nnls(matrix, np.array(list(seen.values()), dtype=float))
    return float(solution[0]), dict(zip(names, map(float, solution[1:]), strict=True))


def settle_costs(config: RunConfig, splits: Splits, path: Path) -> RunConfig:
    """Return a configuration whose costs are known: measured, if it asks for that.

    Args:
        config: The configuration.
        splits: The task's data.
        path: Where a measured table is kept; one that is there is used again.
    """
    if config.executor.costs != PROFILE:
        return config
    if not path.exists():
        profile_costs(config, splits).write(path)
    executor = config.executor.model_copy(update={"costs": str(path)})
    return config.model_copy(update={"executor": executor})


@contextlib.contextmanager
def settled_costs(config: RunConfig, splits: Splits) -> Iterator[RunConfig]:
    """Settle the costs for several plans, without a run folder."""
    with tempfile.TemporaryDirectory(prefix="naspipe-") as folder:
        yield settle_costs(config, splits, Path(folder) / "costs.json")
