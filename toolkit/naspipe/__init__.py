"""NASPipe: neural architecture search with reproducible, pipeline-parallel supernet training.

The names below are the public interface. Each is imported when it is first used, so ``import naspipe`` itself is quick
and does not need torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from naspipe.config.schema import RunConfig as RunConfig
    from naspipe.errors import ConfigError as ConfigError
    from naspipe.errors import InputError as InputError
    from naspipe.errors import NaspipeError as NaspipeError
    from naspipe.errors import NaspipeWarning as NaspipeWarning
    from naspipe.errors import RunError as RunError
    from naspipe.errors import SpaceError as SpaceError
    from naspipe.errors import TaskError as TaskError
    from naspipe.keys import derive_key as derive_key
    from naspipe.keys import keyed_random as keyed_random
    from naspipe.pipeline.executor import Executor as Executor
    from naspipe.registry import register_executor as register_executor
    from naspipe.registry import register_sampler as register_sampler
    from naspipe.registry import register_space as register_space
    from naspipe.registry import register_strategy as register_strategy
    from naspipe.registry import register_task as register_task
    from naspipe.runs.run import Run as Run
    from naspipe.runs.run import run as run
    from naspipe.search.measure import Measure as Measure
    from naspipe.search.measure import Subnet as Subnet
    from naspipe.search.measure import register_objective as register_objective
    from naspipe.search.strategy import Outcome as Outcome
    from naspipe.search.strategy import Strategy as Strategy
    from naspipe.space.architecture import Architecture as Architecture
    from naspipe.space.decision import Decision as Decision
    from naspipe.space.sampler import Sampler as Sampler
    from naspipe.space.space import SearchSpace as SearchSpace
    from naspipe.supernet.block import Block as Block
    from naspipe.supernet.block import ChoiceBlock as ChoiceBlock
    from naspipe.supernet.block import FixedBlock as FixedBlock
    from naspipe.supernet.supernet import Supernet as Supernet
    from naspipe.tasks.classification import ClassificationTask as ClassificationTask
    from naspipe.tasks.data import Batch as Batch
    from naspipe.tasks.data import Dataset as Dataset
    from naspipe.tasks.data import Splits as Splits
    from naspipe.tasks.data import TensorDataset as TensorDataset
    from naspipe.tasks.data import split_tensors as split_tensors
    from naspipe.tasks.task import Task as Task
    from naspipe.training.context import load_config as load_config

_HOMES = {
    "Architecture": "naspipe.space.architecture",
    "Batch": "naspipe.tasks.data",
    "Block": "naspipe.supernet.block",
    "ChoiceBlock": "naspipe.supernet.block",
    "ClassificationTask": "naspipe.tasks.classification",
    "ConfigError": "naspipe.errors",
    "Dataset": "naspipe.tasks.data",
    "Decision": "naspipe.space.decision",
    "Executor": "naspipe.pipeline.executor",
    "FixedBlock": "naspipe.supernet.block",
    "InputError": "naspipe.errors",
    "Measure": "naspipe.search.measure",
    "NaspipeError": "naspipe.errors",
    "NaspipeWarning": "naspipe.errors",
    "Outcome": "naspipe.search.strategy",
    "Run": "naspipe.runs.run",
    "RunConfig": "naspipe.config.schema",
    "RunError": "naspipe.errors",
    "Sampler": "naspipe.space.sampler",
    "SearchSpace": "naspipe.space.space",
    "SpaceError": "naspipe.errors",
    "Splits": "naspipe.tasks.data",
    "Strategy": "naspipe.search.strategy",
    "Subnet": "naspipe.search.measure",
    "Supernet": "naspipe.supernet.supernet",
    "Task": "naspipe.tasks.task",
    "TaskError": "naspipe.errors",
    "TensorDataset": "naspipe.tasks.data",
    "derive_key": "naspipe.keys",
    "keyed_random": "naspipe.keys",
    "load_config": "naspipe.training.context",
    "register_executor": "naspipe.registry",
    "register_objective": "naspipe.search.measure",
    "register_sampler": "naspipe.registry",
    "register_space": "naspipe.registry",
    "register_strategy": "naspipe.registry",
    "register_task": "naspipe.registry",
    "run": "naspipe.runs.run",
    "split_tensors": "naspipe.tasks.data",
}

_FORMER_NAMES = {"Candidate": "Subnet"}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    name = _FORMER_NAMES.get(name, name)
    if name not in _HOMES:
        raise AttributeError(f"module 'naspipe' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
