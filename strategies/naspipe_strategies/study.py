"""The base of strategies by Optuna: a study in memory, asked one generation at a time and told in order."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Sequence

import optuna

from naspipe.errors import NaspipeWarning
from naspipe.keys import derive_key, keyed_random
from naspipe.records import Direction
from naspipe.search.strategy import Outcome, Strategy
from naspipe.search.study import quiet_optuna
from naspipe.space import Architecture, Decision, SearchSpace

MAX_CHILDREN = 100
"""Proposals that may be invalid in a row before a random architecture is proposed instead."""


class StudyStrategy(Strategy):
    """A strategy whose proposals come from an Optuna sampler.

    A whole generation is asked before any of it is told, so the search does not depend on which evaluation ends first.
    """

    key: str
    """The purpose in the key of the sampler's seed."""

    @abstractmethod
    def make_sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        """Return a new sampler of Optuna.

        Args:
            seed: Its seed, in [0, 2**32).
        """

    @abstractmethod
    def distribution(self, decision: Decision) -> optuna.distributions.BaseDistribution:
        """Return Optuna's distribution of the index of a decision's option."""

    def start(self, space: SearchSpace, directions: Sequence[Direction], seed: int) -> None:
        """Open a new study in memory."""
        self._space = space
        self._seed = seed
        self._trials: list[optuna.Trial] = []
        self._fallbacks = 0
        self._distributions = {decision.name: self.distribution(decision) for decision in space.decisions}
        sampler = self.make_sampler(derive_key(seed, self.key) % 2**32)
        self._study = open_study(sampler, directions)

    def ask(self) -> list[Architecture]:
        """Return one generation."""
        self._trials = []
        return [self._ask_valid() for _ in range(self.generation_size)]

    def _ask_valid(self) -> Architecture:
        for _ in range(MAX_CHILDREN):
            trial = self._study.ask(self._distributions)
            architecture = self._read(trial)
            if self._space.is_valid(architecture):
                self._trials.append(trial)
                return architecture
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        generator = keyed_random(self._seed, self.key, "fallback", self._fallbacks)
        architecture = self._space.random_architecture(generator)
        if not self._fallbacks:
            warnings.warn(
                f"{MAX_CHILDREN} proposals of strategy {type(self).__name__} in a row were not valid, or violated "
                "constraints. A random architecture takes their place, now and whenever this happens again.",
                NaspipeWarning,
                stacklevel=2,
            )
        self._fallbacks += 1
        self._study.enqueue_trial(
            {
                decision.name: decision.index(architecture[decision.name]) if decision.name in architecture else 0
                for decision in self._space.decisions
            }
        )
        self._trials.append(self._study.ask(self._distributions))
        return architecture

    def _read(self, trial: optuna.Trial) -> Architecture:
        return self._space.from_indices([trial.params[d.name] for d in self._space.decisions])

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Tell the study the outcomes of the generation, in order."""
        for trial, outcome in zip(self._trials, outcomes, strict=True):
            if outcome.values is None:
                self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                self._study.tell(trial, list(outcome.values))


def open_study(sampler: optuna.samplers.BaseSampler, directions: Sequence[Direction]) -> optuna.Study:
    """Return a new study in memory, without a message on the console."""
    with quiet_optuna():
        return optuna.create_study(
            storage=optuna.storages.InMemoryStorage(),
            sampler=sampler,
            study_name="naspipe",
            directions=list(directions),
        )
