"""The context of a run: its configuration, plug-ins, data, meta supernet and costs, each made once in a process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from naspipe.config.resolve import STRATEGY, construct, resolve, resolve_file
from naspipe.config.schema import RunConfig
from naspipe.config.source import Source
from naspipe.errors import ConfigError, Problem
from naspipe.pipeline.contract import Contract
from naspipe.pipeline.costs import CostTable
from naspipe.search.strategy import Strategy
from naspipe.space import SearchSpace
from naspipe.supernet.determinism import deterministic
from naspipe.supernet.meta import build_on_meta
from naspipe.supernet.supernet import Supernet
from naspipe.tasks.data import Splits
from naspipe.tasks.loading import load_splits
from naspipe.training.components import Components, build_components, contract_of, replace_components
from naspipe.training.planning import Planning, find_costs

DEFAULT_DELAY = 8
"""The delay of always-active layers where a configuration sets none and its contract allows one."""


class CommonParts:
    """The objects that contexts of one space, task and seed share.

    Attributes:
        costs: The costs of the blocks that have been found, by the value of ``executor.costs``.
        is_strategy_used: Whether the strategy of the plug-ins has served a search.
    """

    def __init__(self, config: RunConfig, components: Components) -> None:
        """Make nothing yet; each object is made when it is first asked for."""
        self._config = config
        self._components = components
        self.costs: dict[str, CostTable] = {}
        self.is_strategy_used = False

    @cached_property
    def splits(self) -> Splits:
        """The task's data; settings of torch that the caller has made do not change it."""
        training = self._config.training
        with deterministic(training.threads, training.device):
            return load_splits(self._components.task, self._config.seed)

    @cached_property
    def meta_supernet(self) -> Supernet:
        """The supernet on the meta device."""
        config = self._config
        return build_on_meta(self._components.space, config.seed, config.training.freeze_always_active)


class RunContext:
    """The objects that a run is made of, handed from one phase to the next.

    Plug-ins are constructed with the context. Data, meta supernet and costs are made when they are first asked for.
    """

    def __init__(
        self,
        config: RunConfig,
        components: Components,
        costs: CostTable | None = None,
        common: CommonParts | None = None,
    ) -> None:
        """Use plug-ins that fit a configuration; ``RunContext.load`` constructs them.

        Args:
            config: The configuration; its delay is filled in if it is missing and the contract allows one.
            components: Its plug-ins.
            costs: Costs of the blocks, if they are known from another process.
            common: The objects that this context shares with others; by default none.
        """
        delay, contract = config.training.delay, contract_of(config, components.executor)
        if delay is None and contract.allows_delay:
            training = config.training.model_copy(update={"delay": DEFAULT_DELAY})
            config = config.model_copy(update={"training": training})
        self.config = config
        self.components = components
        self.contract: Contract = contract
        self._common = common or CommonParts(config, components)
        if costs is not None:
            self.set_costs(costs)

    @classmethod
    def load(
        cls,
        config: RunContext | RunConfig | str | Path | Mapping[str, Any],
        overrides: Sequence[str] = (),
        costs: CostTable | None = None,
    ) -> RunContext:
        """Read a configuration, check it and construct its plug-ins.

        Args:
            config: A YAML file's path, a mapping of the same shape, a configuration, or a context, which is returned
                as it is.
            overrides: For a file: texts such as ``training.optimizer.lr=0.05``; the values are YAML.
            costs: Costs of the blocks, if they are known.

        Raises:
            ConfigError: Anything is wrong; it lists everything that is, with file and line.
        """
        if isinstance(config, RunContext):
            return config
        if isinstance(config, (str, Path)):
            resolved, source = resolve_file(config, overrides)
            return cls(resolved, build_components(resolved, source.origin_of_all), costs)
        resolved = resolve(Source(data=_as_mapping(config)))
        return cls(resolved, build_components(resolved), costs)

    @property
    def splits(self) -> Splits:
        """The task's data.

        Raises:
            TaskError: It cannot be loaded, or a split has no samples.
        """
        return self._common.splits

    @property
    def meta_supernet(self) -> Supernet:
        """The supernet on the meta device."""
        return self._common.meta_supernet

    @property
    def knows_costs(self) -> bool:
        """Whether the costs of the blocks have been found."""
        return self.config.executor.costs in self._common.costs

    @property
    def costs(self) -> CostTable:
        """The costs of the blocks; a profile must have been measured before (``training/profiling.py``).

        Raises:
            InputError: The table of costs does not fit.
        """
        if not self.knows_costs:
            self.set_costs(find_costs(self.config, self.meta_supernet, lambda: self.splits))
        return self._common.costs[self.config.executor.costs]

    def set_costs(self, costs: CostTable) -> None:
        """Keep the costs of the blocks that the configuration asks for."""
        self._common.costs[self.config.executor.costs] = costs

    @cached_property
    def planning(self) -> Planning:
        """The source of this run's plans."""
        return Planning(self.config, self.components, self.meta_supernet, self.costs)

    def with_config(self, config: RunConfig) -> RunContext:
        """Return the context of another configuration of the same space, task, seed, strategy and measures.

        Sampler and executor are constructed again where their sections differ; everything else is shared.

        Raises:
            ConfigError: A plug-in refuses its parameters, or a delay is set where the contract has none.
        """
        components = replace_components(self.components, self.config, config)
        return RunContext(config, components, common=self._common)

    def take_strategy(self, space: SearchSpace) -> Strategy:
        """Return a strategy that has been started for a search in a space; a strategy serves one search only.

        Args:
            space: The run's space, or the same with constraints.
        """
        components, config = self.components, self.config
        strategy, section = components.strategy, config.search.strategy
        if self._common.is_strategy_used:
            strategy = construct(STRATEGY.registry, section.name, section.parameters)
        if self._common.is_strategy_used or space is not components.space:
            strategy.start(space, [objective.direction for objective in components.objectives], config.seed)
        self._common.is_strategy_used = True
        return strategy


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a run's configuration from YAML and check it, down to the plug-ins it names.

    Args:
        path: The file.
        overrides: Texts such as ``training.optimizer.lr=0.05``; the values are YAML.

    Returns:
        The configuration with every default filled in.

    Raises:
        ConfigError: Anything is wrong; it lists everything that is, with file and line.
    """
    return RunContext.load(path, overrides).config


def as_config(config: RunConfig | str | Path | Mapping[str, Any]) -> RunConfig:
    """Return a configuration that is given as a path, a mapping or ready, checked and with every default filled in.

    Raises:
        ConfigError: Anything is wrong; it lists everything that is.
    """
    return RunContext.load(config).config


def _as_mapping(config: object) -> dict[str, Any]:
    """Return a configuration's keys and values, as YAML could hold them.

    Raises:
        ConfigError: It is no configuration, or holds other values.
    """
    if not isinstance(config, (RunConfig, Mapping)):
        message = "must be a path, a mapping or a naspipe.RunConfig, but got"
        raise ConfigError([Problem("", f"{message} {config!r} of type {type(config).__name__}.")])
    data = config.model_dump(mode="json") if isinstance(config, RunConfig) else dict(config)
    try:
        plain: dict[str, Any] = json.loads(json.dumps(data, default=_refuse))
    except (TypeError, ValueError) as error:
        message = f"must hold only numbers, texts, booleans, lists and mappings, but: {error}."
        raise ConfigError([Problem("", message)]) from error
    return plain


def _refuse(value: object) -> None:
    message = f"must hold only numbers, texts, booleans, lists and mappings, but holds {value!r}."
    raise ConfigError([Problem("", message)])
