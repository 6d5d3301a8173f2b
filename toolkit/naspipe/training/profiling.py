"""Profiling: the time that blocks and their options take, measured in a short training.

Every block is a stage of that training, so its recorder times the same code that a run executes: boundaries, loss and
updates included. Its weights are dropped.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from naspipe.config.schema import ExecutorConfig, PluginConfig, RunConfig
from naspipe.errors import NaspipeWarning
from naspipe.pipeline.action import Kind
from naspipe.pipeline.costs import BlockCosts, CostTable
from naspipe.supernet.supernet import Supernet
from naspipe.training.context import RunContext
from naspipe.training.planning import PROFILE, read_costs
from naspipe.training.progress import Progress, Watch, ignore
from naspipe.training.recorder import RecordedAction, Recorder
from naspipe.training.session import TrainingSession

MEASURED = 3
"""Number of measured runs of each option, after one run to warm up."""

Used = tuple[str, ...]
"""The strict layers that a block uses."""


def profile_costs(context: RunContext) -> CostTable:
    """Measure the time of forward, backward and update for every block and each of its strict layers.

    Args:
        context: The run; batch size, micro-batches, precision, device and recompute matter.

    Returns:
        A table whose ticks are microseconds.
    """
    space, supernet = context.components.space, context.meta_supernet
    options = max(len(decision.options) for decision in space.decisions)
    # If architectures use several layers of a block at once, there must be as many observations as unknowns.
    unknowns = max(sum(layer.strict for layer in block.values()) for block in supernet.layers_by_block)
    count = options + MEASURED * max(options, unknowns)
    with warnings.catch_warnings():
        # What the sampler of the profile warns of does not concern the run.
        warnings.simplefilter("ignore", NaspipeWarning)
        profiled = context.with_config(_profiled(context.config, count, len(supernet)))
    result = TrainingSession(profiled, recorder=Recorder(context.config.training.device)).run()
    drawn = [
        [tuple(layer.name for layer in row if layer.strict) for row in subnet.layers]
        for subnet in profiled.planning.scenario().subnets()
    ]
    return _table(result.actions, drawn, supernet, options)


def _profiled(config: RunConfig, subnets: int, blocks: int) -> RunConfig:
    """Return the configuration of the short training: every block is a stage, and options are drawn equally often."""
    # The loss does not matter here, so a loss that is not finite must not end the training.
    training = config.training.model_copy(
        update={"subnets": subnets, "on_nonfinite": "skip", "delay": config.training.delay or 0}
    )
    executor = ExecutorConfig(name="sequential", stages=blocks, recompute=config.executor.recompute)
    return config.model_copy(update={"training": training, "executor": executor, "sampler": PluginConfig(name="fair")})


def _table(recorded: Sequence[RecordedAction], drawn: list[list[Used]], supernet: Supernet, warmup: int) -> CostTable:
    """Return the table of costs that fits the actions recorded after the warm-up."""
    times: list[dict[tuple[Kind, Used], list[int]]] = [{} for _ in supernet]
    for planned, start, end, _ in recorded:
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
            "time of their own. Few architectures use them, so the plan is hardly worse.",
            NaspipeWarning,
            stacklevel=4,
        )
    return CostTable(blocks=tuple(blocks))


def _fit(seen: Mapping[Used, float]) -> tuple[float, dict[str, float]]:
    """Return the base time of a block and the time that each layer adds, by non-negative least squares.

    Args:
        seen: Time of the block for each set of layers that it has run with, in microseconds.
    """
    # Importing scipy.optimize takes a second, and other runs do not need it.
    from scipy.optimize import nnls

    names = sorted({name for used in seen for name in used})
    matrix = np.array([[1.0, *(float(name in used) for name in names)] for used in seen])
    solution, _ = nnls(matrix, np.array(list(seen.values()), dtype=float))
    return float(solution[0]), dict(zip(names, map(float, solution[1:]), strict=True))


def measure_costs(context: RunContext, path: Path | None = None, watch: Watch = ignore) -> None:
    """Measure the costs of a run's blocks, if its configuration asks for that and they are not known.

    Args:
        context: The run.
        path: The file that keeps them; one that exists is used again.
        watch: Called before the measurement begins.

    Raises:
        InputError: The file that exists is of another space.
    """
    if context.config.executor.costs != PROFILE:
        return
    if not context.knows_costs:
        if path is not None and path.exists():
            context.set_costs(read_costs(path, len(context.meta_supernet)))
        else:
            watch(Progress("train", 0, context.config.training.subnets, "measuring the time of every layer"))
            context.set_costs(profile_costs(context))
    if path is not None and not path.exists():
        context.costs.write(path)
