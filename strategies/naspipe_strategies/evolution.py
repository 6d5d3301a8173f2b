"""Evolution: NSGA-II from Optuna, one generation at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import optuna
from pydantic import Field

from naspipe.keys import derive_key, keyed_random
from naspipe.search.strategy import Outcome, Strategy
from naspipe.space import Architecture, SearchSpace

if TYPE_CHECKING:
    from naspipe.tasks.task import Direction

MAX_CHILDREN = 100
"""Children looked at for a valid one before a random architecture takes its place."""


class EvolutionStrategy(Strategy):
    """Evolutionary search by NSGA-II, for one or several objectives, through Optuna.

    A generation is asked at once and told in order, so the search does not depend on which evaluation
    ends first. Source: Deb et al., "A fast and elitist multiobjective genetic algorithm: NSGA-II", 2002.
    """

    def __init__(
        self,
        population: Annotated[int, Field(ge=2)] = 16,
        crossover_probability: Annotated[float, Field(ge=0, le=1)] = 0.9,
        mutation_probability: Annotated[float, Field(ge=0, le=1)] | None = None,
    ) -> None:
        """Choose the parameters.

        Args:
            population: Architectures in a generation.
            crossover_probability: Chance that a child has two parents and not one.
            mutation_probability: Chance that a decision is drawn anew; by default one decision a child.
        """
        self.population = population
        self.crossover_probability = crossover_probability
        self.mutation_probability = mutation_probability

    def start(self, space: SearchSpace, directions: Sequence[Direction], seed: int) -> None:
        """Open a study in memory."""
        self._space = space
        self._seed = seed
        self._trials: list[optuna.Trial] = []
        self._fallbacks = 0
        # Integers instead of categories: the same search, and several times as fast.
        self._distributions: dict[str, optuna.distributions.BaseDistribution] = {
            decision.name: optuna.distributions.IntDistribution(0, len(decision.options) - 1)
            for decision in space.decisions
        }
        sampler = optuna.samplers.NSGAIISampler(
            population_size=self.population,
            crossover_prob=self.crossover_probability,
            mutation_prob=self.mutation_probability,
            seed=derive_key(seed, "evolution strategy") % 2**32,
        )
        verbosity = optuna.logging.get_verbosity()
        # Optuna announces each study on the console.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            self._study = optuna.create_study(
                storage=optuna.storages.InMemoryStorage(),
                sampler=sampler,
                study_name="naspipe",
                directions=list(directions),
            )
        finally:
            optuna.logging.set_verbosity(verbosity)

    @property
    def generation_size(self) -> int:
        """The population."""
        return self.population

    def ask(self) -> list[Architecture]:
        """Return one generation."""
        self._trials = []
        return [self._ask_valid() for _ in range(self.population)]

    def _ask_valid(self) -> Architecture:
        for _ in range(MAX_CHILDREN):
            trial = self._study.ask(self._distributions)
            architecture = self._read(trial)
            if self._space.is_valid(architecture):
                self._trials.append(trial)
                return architecture
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        generator = keyed_random(self._seed, "evolution strategy", "fallback", self._fallbacks)
        self._fallbacks += 1
        architecture = self._space.random_architecture(generator)
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
        """Tell the generation's values in order."""
        for trial, outcome in zip(self._trials, outcomes, strict=True):
            if outcome.values is None:
                self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                self._study.tell(trial, list(outcome.values))
