"""The check of task and space together, on a copy of one subnet.

It changes neither the supernet nor a generator nor the disk, and reads only the length of the test split.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from naspipe.config.schema import RunConfig
from naspipe.errors import InputError, NaspipeWarning, SpaceError, TaskError
from naspipe.keys import derive_key, keyed_random
from naspipe.preflight.option_check import check_options, find_misfit
from naspipe.search.constraints import Feasibility, constrained
from naspipe.search.evaluation import as_mapping
from naspipe.search.measure import as_number
from naspipe.search.measure_cache import MeasureCache
from naspipe.search.strategy import Strategy
from naspipe.space import Architecture
from naspipe.supernet.block import ChoiceBlock
from naspipe.supernet.determinism import deterministic, seed_generators
from naspipe.supernet.supernet import Supernet
from naspipe.tasks.data import Batch, Splits, require_splittable, smallest_batch, split_batch
from naspipe.tasks.loading import describe_value
from naspipe.training.components import Components
from naspipe.training.context import RunContext
from naspipe.usercode import calling
from naspipe.wording import listing

_CPU = {"device": "cpu"}


def check_task(context: RunContext, supernet: Supernet) -> None:
    """Load the data and try task and space on it, as training, search and retraining will.

    Args:
        context: The run.
        supernet: Its supernet, on the CPU; it is left as it is.

    Raises:
        TaskError: The data or a method of the task is not as it must be.
        SpaceError: The subnet fails on the data.
        InputError: Batches are too small to be divided into micro-batches, or among processes.
    """
    config, components, splits = context.config, context.components, context.splits
    task, space = components.task, components.space
    samples = len(splits.train)
    require_splittable(samples, config.training.batch_size, config.training.microbatches, "training.microbatches")
    require_splittable(samples, config.retrain.batch_size, config.retrain.processes, "retrain.processes")
    _warn_of_warmup(config, samples)
    _warn_of_generations(components.strategy, config)
    _warn_of_no_effect(config)
    _require_decisions(supernet)
    architecture = space.random_architecture(keyed_random(config.seed, "check"))
    with deterministic(config.training.threads, "cpu"):
        seed_generators(derive_key(config.seed, "check"))
        rehearsal = _Rehearsal(components, splits, supernet, architecture)
        few = rehearsal.batch("train", min(_smallest_part(config, samples), 2))
        try:
            # The first batch of the training, and the smallest batch of all: normalisation may refuse that.
            first = rehearsal.batch("train", min(samples, config.training.batch_size))
            for part in split_batch(first, config.training.microbatches):
                rehearsal.train(part)
            rehearsal.train(few)
            rehearsal.evaluate(min(len(splits.validation), config.search.batch_size))
            check_options(supernet, context.meta_supernet, few, task.loss, config.seed)
            _require_feasible(components, splits, supernet, config)
        except SpaceError as error:
            misfit = find_misfit(supernet, few, config.seed)
            if misfit is not None:
                raise misfit from error
            raise


def _require_feasible(components: Components, splits: Splits, supernet: Supernet, config: RunConfig) -> None:
    """Take the measures once, and raise an error if no architecture is found that satisfies the constraints.

    Raises:
        SpaceError: None is found.
        InputError: A measure fails.
    """
    space, cpu = components.space, config.model_copy(update={"training": config.training.model_copy(update=_CPU)})
    cache = MeasureCache(components.measures, space, supernet.extract, splits.validation, cpu)
    generator = keyed_random(config.seed, "feasible")
    with calling("taking the measures of an architecture", InputError):
        cache.of(space.random_architecture(generator))
    if not components.constraints:
        return
    names = [constraint.metric for constraint in components.constraints]
    feasibility = Feasibility(space, components.constraints, lambda a: cache.of(a, names))
    try:
        constrained(space, feasibility).random_architecture(generator)
    except SpaceError as error:
        raise SpaceError(feasibility.explanation or str(error)) from None


def _require_decisions(supernet: Supernet) -> None:
    """Raise an error if a ChoiceBlock uses a decision that the space does not have."""
    for index, block in enumerate(supernet):
        if isinstance(block, ChoiceBlock):
            try:
                supernet.space.decision(block.decision)
            except SpaceError as error:
                raise SpaceError(
                    f"block {index} chooses by a decision that the space does not have: {error}"
                ) from error


def _smallest_part(config: RunConfig, samples: int) -> int:
    """Return the smallest number of samples in a forward of training or retraining."""
    training = config.training
    # A short training may end before the last batch of an epoch, which may be smaller.
    whole_epoch = training.subnets * training.batch_size >= samples
    batch = smallest_batch(samples, training.batch_size) if whole_epoch else training.batch_size
    retrain = smallest_batch(samples, config.retrain.batch_size) // config.retrain.processes
    return min(batch // training.microbatches, retrain)


class _Rehearsal:
    """A copy of one subnet, and the calls that training and evaluation make with it."""

    def __init__(self, components: Components, splits: Splits, supernet: Supernet, architecture: Architecture) -> None:
        self._task, self._objectives = components.task, components.objectives
        self._measured = components.measures
        self._splits = splits
        space = type(components.space).__name__
        with calling(f"{space}.format of a random architecture", SpaceError):
            self._name = f"{space}, architecture {components.space.format(architecture)}"
        with calling(f"{self._name}: extracting it from the supernet", SpaceError):
            supernet.used_layers(architecture)
            self._subnet = supernet.extract(architecture)

    def batch(self, split: str, count: int) -> Batch:
        """Return the first samples of a split."""
        what = f"{type(self._task).__name__}: batch() of the {split} split"
        with calling(what, TaskError):
            batch: object = getattr(self._splits, split).batch(list(range(count)), key=0)
        if not isinstance(batch, Batch):
            raise TaskError(f"{what} must return naspipe.Batch(inputs, targets), but returned {describe_value(batch)}.")
        return batch

    def train(self, batch: Batch) -> None:
        """Compute the loss of a batch as training does."""
        self._subnet.train()
        self._add_loss({"loss": 0.0, "weight": 0.0}, self._forward(batch), batch.targets)

    def evaluate(self, count: int) -> None:
        """Compute the metrics of the first validation samples as the search does."""
        batch = self.batch("validation", count)
        self._subnet.eval()
        totals = {"loss": 0.0, "weight": 0.0}
        with torch.no_grad():
            outputs = self._forward(batch)
            self._add_loss(totals, outputs, batch.targets)
            totals.update(as_mapping(self._ask("measure", outputs, batch.targets), self._task, "measure"))
            # Two samples are enough: a task may run the module many times on each.
            few = self.batch("validation", min(count, 2))
            sums = self._ask("measure_module", self._subnet, few, self._splits.validation, 0)
            totals.update(as_mapping(sums, self._task, "measure_module"))
        metrics = as_mapping(self._ask("metrics", totals), self._task, "metrics")
        for objective in self._objectives:
            if objective.name not in (*metrics, *self._measured):
                raise TaskError(
                    f"{type(self._task).__name__}.metrics must return every objective of the search, but "
                    f"{objective.name!r} is missing. It returned {listing(map(str, metrics))}."
                )

    def _forward(self, batch: Batch) -> Any:
        mode = "training" if self._subnet.training else "evaluation"
        with calling(
            f"the space must fit the task, but a batch with inputs {describe_value(batch.inputs)} in {mode} mode "
            f"of {self._name}",
            SpaceError,
        ):
            return self._subnet(batch.inputs)

    def _add_loss(self, totals: dict[str, float], outputs: Any, targets: Any) -> None:
        task = type(self._task).__name__
        loss = self._ask("loss", outputs, targets)
        if not isinstance(loss, Tensor) or loss.dim() != 0:
            raise TaskError(f"{task}.loss must return the summed loss, a scalar, but returned {describe_value(loss)}.")
        weight = as_number(self._ask("weight", targets))
        if weight is None or not weight > 0:
            raise TaskError(
                f"{task}.weight must return what the loss is divided by, a number above 0, but returned {weight!r}."
            )
        totals["loss"] += float(loss.item())
        totals["weight"] += weight

    def _ask(self, method: str, *arguments: Any) -> Any:
        what = f"{type(self._task).__name__}.{method}"
        if len(arguments) == 2:
            outputs, targets = map(describe_value, arguments)
            what += f" of outputs with {outputs} and targets with {targets} (does the space fit the task?)"
        with calling(what, TaskError):
            return getattr(self._task, method)(*arguments)


def _warn_of_generations(strategy: Strategy, config: RunConfig) -> None:
    search, size = config.search, strategy.generation_size
    name = search.strategy.name
    if strategy.learns and search.budget.trials is not None and search.budget.trials < size:
        warnings.warn(
            f"search.budget.trials = {search.budget.trials} is less than one generation of strategy {name!r}, which "
            f"costs {size} evaluations: the search ends before the strategy has learned anything.",
            NaspipeWarning,
            stacklevel=3,
        )
    if search.workers > size:
        warnings.warn(
            f"search.workers = {search.workers} are more than strategy {name!r} proposes at a time, {size}: the others "
            "have nothing to do.",
            NaspipeWarning,
            stacklevel=3,
        )


def _warn_of_warmup(config: RunConfig, samples: int) -> None:
    batches = -(-samples // config.retrain.batch_size)
    for phase, settings, steps in (
        ("training", config.training, config.training.subnets),
        ("retrain", config.retrain, config.retrain.epochs * batches),
    ):
        if settings.schedule.warmup >= steps:
            warnings.warn(
                f"{phase}.schedule.warmup = {settings.schedule.warmup} takes up all {steps} steps, so that "
                "the learning rate only rises. Choose a shorter one, or more steps.",
                NaspipeWarning,
                stacklevel=3,
            )


def _warn_of_no_effect(config: RunConfig) -> None:
    """Warn of settings of the retraining that change nothing."""
    retrain, trials = config.retrain, config.search.budget.trials
    if trials is not None and retrain.best > trials:
        warnings.warn(
            f"retrain.best = {retrain.best}, but the search evaluates {trials} architectures only, and no more are "
            "retrained. Choose fewer, or raise search.budget.trials.",
            NaspipeWarning,
            stacklevel=3,
        )
    if retrain.inits != ("inherit",):
        return
    for key, value in (("seeds", retrain.seeds), ("processes", retrain.processes)):
        if value > 1:
            warnings.warn(
                f"retrain.{key} = {value} has no effect: retrain.init is 'inherit' alone, which trains nothing. Add "
                "'scratch' or 'finetune' to it.",
                NaspipeWarning,
                stacklevel=3,
            )
