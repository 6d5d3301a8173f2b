"""The plug-ins of a run, constructed from its configuration and checked against each other."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from naspipe.config.resolve import (
    EXECUTOR,
    SAMPLER,
    SPACE,
    STRATEGY,
    TASK,
    PluginSlot,
    construct,
)
from naspipe.config.schema import RunConfig
from naspipe.config.source import Key, path_text
from naspipe.errors import ConfigError, InputError, NaspipeWarning, Problem, SpaceError
from naspipe.keys import keyed_random
from naspipe.pipeline.contract import Contract
from naspipe.pipeline.executor import Executor, PipelineShape
from naspipe.search.conditions import Condition
from naspipe.search.constraints import find_constraints
from naspipe.search.measure import Measure
from naspipe.search.objective import (
    Objective,
    find_measure,
    find_measures,
    find_objectives,
    measure_name,
    read_directions,
)
from naspipe.search.strategy import Strategy
from naspipe.space import SearchSpace
from naspipe.space.sampler import Sampler
from naspipe.supernet.determinism import check_device
from naspipe.tasks.task import Task
from naspipe.usercode import calling


@dataclass(frozen=True)
class Components:
    """The plug-ins of a run; sampler and strategy have been started for this space.

    Attributes:
        space: The search space.
        task: The task.
        sampler: Draws the subnets that are trained; ``start`` begins its sequence again.
        executor: Chooses the order of actions.
        strategy: Proposes architectures.
        objectives: What the search optimises.
        constraints: Conditions that every trial of the search satisfies.
        measures: Measures that are taken of a subnet before it is evaluated, by the names of their metrics.
    """

    space: SearchSpace
    task: Task
    sampler: Sampler
    executor: Executor
    strategy: Strategy
    objectives: list[Objective]
    constraints: list[Condition]
    measures: dict[str, Measure]


def build_components(config: RunConfig, origin: Callable[[Key], str] = lambda key: "") -> Components:
    """Construct the plug-ins that a configuration names.

    Args:
        config: A resolved configuration.
        origin: Gives file and line of a path, for error messages.

    Raises:
        ConfigError: A plug-in refuses its parameters, or two do not fit each other.
    """
    builder = _Builder(config, origin)
    space = builder.plugin(SPACE, config.space.parameters)
    task = builder.plugin(TASK, config.task.parameters)
    sampler = builder.plugin(SAMPLER, config.sampler.parameters)
    executor = builder.plugin(EXECUTOR, config.executor.options)
    strategy = builder.plugin(STRATEGY, config.search.strategy.parameters)
    # One object of each measure, also where it is both an objective and the subject of a constraint.
    find = functools.cache(find_measure)
    objectives: list[Objective] = []
    constraints: list[Condition] = []
    measures: dict[str, Measure] = {}
    if task is not None and builder.attempt(TASK.key, lambda: read_directions(task)) is not None:
        names, conditions = config.search.objectives, config.search.constraints
        objectives = builder.attempt(("search", "objectives"), lambda: find_objectives(task, names, find))
        constraints = builder.attempt(("search", "constraints"), lambda: find_constraints(task, conditions))
        if objectives and constraints is not None:
            at = ("search", "constraints")
            measures = builder.attempt(at, lambda: find_measures(task, names, constraints, find))
            constraints = [replace(c, metric=measure_name(c.metric)) for c in constraints]
    if space is not None:
        builder.attempt(SPACE.key, lambda: _require_usable(space))
    if not builder.problems and space is not None:
        builder.start_sampler(sampler, space)
        directions = [objective.direction for objective in objectives]
        builder.attempt(
            STRATEGY.key, lambda: strategy.start(space, directions, config.seed), _name(strategy, "start()")
        )
    if strategy is not None:
        what = _name(strategy, "generation_size")
        builder.attempt(STRATEGY.key, lambda: _as_size(strategy.generation_size, what), what)
    builder.check_delay(executor)
    builder.attempt(("training", "device"), lambda: check_device(config.training.device))
    builder.finish()
    return Components(space, task, sampler, executor, strategy, objectives, constraints, measures)


def replace_components(components: Components, before: RunConfig, config: RunConfig) -> Components:
    """Construct sampler and executor again where another configuration has others, and share the rest.

    Args:
        components: The plug-ins of ``before``.
        before: A configuration.
        config: A configuration that differs from it in sampler, executor, delay, or what concerns no plug-in.

    Raises:
        ConfigError: A plug-in refuses its parameters, or a delay is set where the contract has none.
    """
    builder = _Builder(config, lambda key: "")
    sampler, executor = components.sampler, components.executor
    if (config.executor.name, config.executor.options) != (before.executor.name, before.executor.options):
        executor = builder.plugin(EXECUTOR, config.executor.options)
    if config.sampler != before.sampler:
        sampler = builder.plugin(SAMPLER, config.sampler.parameters)
        if sampler is not None:
            builder.start_sampler(sampler, components.space)
    builder.check_delay(executor)
    builder.finish()
    return replace(components, sampler=sampler, executor=executor)


class _Builder:
    """Collects problems, so that all are reported together."""

    def __init__(self, config: RunConfig, origin: Callable[[Key], str]) -> None:
        self.problems: list[Problem] = []
        self._config = config
        self._origin = origin

    def attempt(self, key: Key, action: Callable[[], Any], called: str = "") -> Any:
        """Return the result of a function; None, with a problem noted, if it refuses its input.

        Args:
            key: The section that the problem is reported for.
            action: The function to call.
            called: The method of a plug-in that it calls, for messages; empty: none.
        """
        try:
            if not called:
                return action()
            with calling(called, InputError):
                return action()
        except InputError as error:
            self.problems.append(Problem(path_text(key), str(error), self._origin(key)))
        return None

    def plugin(self, slot: PluginSlot, values: dict[str, Any]) -> Any:
        """Construct a plug-in; None, with a problem noted, if it refuses its parameters."""
        section: Any = self._config
        for part in slot.key:
            section = getattr(section, part)
        return self.attempt(slot.key, lambda: construct(slot.registry, section.name, values))

    def start_sampler(self, sampler: Sampler, space: SearchSpace) -> None:
        """Start a sampler, which may refuse the space or warn."""
        self.attempt(SAMPLER.key, lambda: sampler.start(space, self._config.seed), _name(sampler, "start()"))

    def check_delay(self, executor: Executor | None) -> None:
        """Check that no delay is set where the contract of an executor, if it could be constructed, has none."""
        if executor is not None:
            self.attempt(("training", "delay"), lambda: _check_delay(self._config, executor))

    def finish(self) -> None:
        """Report the problems, if there are any.

        Raises:
            ConfigError: There are.
        """
        if self.problems:
            raise ConfigError(self.problems)


def _require_usable(space: SearchSpace) -> None:
    if not hasattr(space, "decisions"):
        name = type(space).__name__
        raise SpaceError(f"{name}.__init__ must call super().__init__(decisions), but did not.")
    space.random_architecture(keyed_random(0, "validity"))


def _name(plugin: object, member: str) -> str:
    return f"{type(plugin).__name__}: {member}"


def _as_size(size: object, what: str) -> int:
    if not isinstance(size, int) or size < 1:
        raise InputError(f"{what} must be a whole number of 1 or more, but is {size!r}.")
    return size


def contract_of(config: RunConfig, executor: Executor) -> Contract:
    """Return the contract that an executor keeps for a configuration."""
    training, section = config.training, config.executor
    return executor.contract(PipelineShape(section.stages, training.microbatches, training.subnets, section.segments))


def start_again(sampler: Sampler, space: SearchSpace, seed: int) -> None:
    """Start a sampler of a configuration that has been checked; its warnings were shown then."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NaspipeWarning)
        sampler.start(space, seed)


def _check_delay(config: RunConfig, executor: Executor) -> None:
    training, section = config.training, config.executor
    contract = contract_of(config, executor)
    if training.delay is not None and not contract.allows_delay:
        raise InputError(
            f"must not be set, but is {training.delay}: executor {section.name!r} keeps the contract "
            f"{contract}, which governs all layers. Set training.delay=null."
        )
