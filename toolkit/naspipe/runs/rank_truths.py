"""Truths: the values whose order is compared with the order of a supernet's scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from naspipe import registry
from naspipe.errors import InputError, NaspipeError, SearchError, TrainingError
from naspipe.keys import derive_key
from naspipe.records import Direction
from naspipe.results.view import RunView
from naspipe.search.evaluation import measure_split
from naspipe.search.measure import Subnet, measure_subnet
from naspipe.search.objective import Objective, find_measure, measure_name, read_metrics, require_objectives
from naspipe.space import Architecture, SearchSpace
from naspipe.supernet.supernet import build_subnet
from naspipe.training.standalone import retrain
from naspipe.usercode import calling
from naspipe.wording import listing, nearest

RETRAIN = "retrain"
"""Name of the truth by stand-alone training."""


class Truth(ABC):
    """The true values of architectures.

    Attributes:
        name: Name of the metric or measure, for people.
        direction: Which way is better.
        default_count: Default number of architectures to check.
        pool_factor: Number of architectures to score for each architecture to check.
        is_random: Whether another seed gives another value.
    """

    name: str
    direction: Direction
    default_count: int
    pool_factor: int
    is_random: bool

    @abstractmethod
    def check(self, pool: Sequence[Architecture]) -> None:
        """Raise an error if this truth does not fit the space of some architectures.

        Raises:
            InputError: It does not fit.
        """

    @abstractmethod
    def value(self, architecture: Architecture, seed: int) -> float:
        """Return the true value of an architecture; the same arguments give the same value.

        Args:
            architecture: One of the space.
            seed: Index of the training, from 0 on.
        """


class Retraining(Truth):
    """An architecture's score on the validation split after training by itself, from fresh weights.

    The settings are the run's for retraining, with two exceptions. ``init`` is always ``scratch``, since weights of the
    supernet would make the truth depend on it; and all train in this process, whatever ``retrain.processes`` says. The
    first training has the run's seed, as in ``naspipe retrain``.
    """

    default_count = 20
    # Scores are cheap compared with trainings, and a larger pool makes the ranks of the trained ones representative.
    pool_factor = 5
    is_random = True

    def __init__(self, run: RunView, objective: Objective) -> None:
        self.name = objective.name
        self.direction = objective.direction
        self._run = run
        self._objective = objective

    def check(self, pool: Sequence[Architecture]) -> None:
        """Do nothing: every architecture can be trained."""

    def value(self, architecture: Architecture, seed: int) -> float:
        """Train, and measure the run's first objective on the validation split."""
        run, config, task = self._run, self._run.config, self._run.components.task
        key = config.seed if seed == 0 else derive_key(config.seed, "rank_check", seed)
        module = build_subnet(run.components.space, architecture, key)
        device = config.training.device
        retrain(module, task, run.splits.train, config.retrain, key, device, lambda record: None)
        with calling("evaluating the trained subnet on the validation split", TrainingError):
            metrics = measure_split(module, task, run.splits.validation, config.search.batch_size, device)
        require_objectives(metrics, [self._objective])
        return read_metrics(metrics)[self._objective.name]


class Measured(Truth):
    """A registered objective that needs the architecture only, such as a table of accuracies."""

    default_count = 100
    # These truths cost nothing but scores do, so every architecture that is scored is also checked.
    pool_factor = 1
    is_random = False

    def __init__(self, space: SearchSpace, against: str) -> None:
        self._measure = find_measure(against)
        self._against = against
        self._space = space
        self.name = measure_name(against)
        self.direction = self._measure.direction

    def check(self, pool: Sequence[Architecture]) -> None:
        """Measure architectures up to the first that has a truth: then the measure fits, and needs no module."""
        errors: list[NaspipeError] = []
        for architecture in pool:
            try:
                self.value(architecture, 0)
            except (InputError, SearchError) as error:
                errors.append(error)
            else:
                return
        raise InputError(
            f"a rank check must be against {RETRAIN} or an objective that gives the truth of this run's architectures "
            f"by themselves, but {self._against} gives none: {errors[0]}"
        ) from errors[0]

    def value(self, architecture: Architecture, seed: int) -> float:
        """Measure the architecture."""
        return measure_subnet(self.name, self._measure, Subnet(self._space, architecture))[self.name]


def find_truth(run: RunView, against: str, objective: Objective) -> Truth:
    """Return the truth that ``--against`` names.

    Args:
        run: A run with a trained supernet.
        against: ``retrain``, a registered objective, or a reference to one.
        objective: The objective of the supernet's scores.

    Raises:
        InputError: The name is unknown.
    """
    if against == RETRAIN:
        return Retraining(run, objective)
    known = [RETRAIN, *registry.objectives.names()]
    if ":" not in against and against not in known:
        raise InputError(
            f"a rank check must be against {RETRAIN} or a registered objective that needs the architecture only, but "
            f"got {against!r}.{nearest(against, known)} Known: {listing(known)}. Or give a reference: file.py:Class or "
            "package.module:Class."
        )
    return Measured(run.components.space, against)
