"""Truths: what the order of a supernet's scores is compared with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from naspipe import registry
from naspipe.errors import InputError, NaspipeError, SearchError, TrainingError
from naspipe.keys import derive_key
from naspipe.records import Direction
from naspipe.results.view import RunView
from naspipe.search.evaluation import measure_split
from naspipe.search.measure import Candidate, measure_candidate
from naspipe.search.objective import Objective, find_measure, measure_name, read_metrics, require_objectives
from naspipe.space import Architecture, SearchSpace
from naspipe.supernet.supernet import build_subnet
from naspipe.training.standalone import retrain
from naspipe.usercode import calling
from naspipe.wording import listing, nearest

RETRAIN = "retrain"
"""The truth by stand-alone training."""


class Truth(ABC):
    """Gives the true value of an architecture.

    Attributes:
        name: What it measures, for people.
        direction: Which way is better.
        default_count: Architectures that are checked unless another number is given.
        pool_factor: For each architecture that is checked, so many are scored by the supernet.
        is_random: Whether another seed gives another value.
    """

    name: str
    direction: Direction
    default_count: int
    pool_factor: int
    is_random: bool

    @abstractmethod
    def check(self, pool: Sequence[Architecture]) -> None:
        """Raise an error if this is no truth for the space, by some of its architectures.

        Raises:
            InputError: It is none.
        """

    @abstractmethod
    def value(self, architecture: Architecture, seed: int) -> float:
        """Return the true value of an architecture; the same arguments give the same value.

        Args:
            architecture: One of the space.
            seed: Which of several trainings, from 0 on.
        """


class Retraining(Truth):
    """An architecture's score on the validation split after training by itself, from fresh weights.

    The settings are the run's for retraining, but for ``init``: weights of the supernet would carry its own judgement
    into the truth; and all train in this process, whatever ``retrain.processes`` says. The first training has the run's
    seed, as ``naspipe retrain`` has.
    """

    default_count = 20
    # Scores are cheap beside trainings, and more of them make the places of those that are trained representative.
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
    # The truth is free here and the score is not: every architecture that is scored is checked as well.
    pool_factor = 1
    is_random = False

    def __init__(self, space: SearchSpace, against: str) -> None:
        self._measure = find_measure(against)
        self._against = against
        self._space = space
        self.name = measure_name(against)
        self.direction = self._measure.direction

    def check(self, pool: Sequence[Architecture]) -> None:
        """Measure architectures up to the first that has a truth: the space is the right one, no module is needed."""
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
        return measure_candidate(self.name, self._measure, Candidate(self._space, architecture))[self.name]


def find_truth(run: RunView, against: str, objective: Objective) -> Truth:
    """Return what ``--against`` names.

    Args:
        run: A run with a trained supernet.
        against: ``retrain``, a registered objective, or a reference to one.
        objective: What the supernet is scored by.

    Raises:
        InputError: It is unknown.
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
