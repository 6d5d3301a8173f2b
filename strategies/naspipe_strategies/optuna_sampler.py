"""The strategy optuna: any other sampler of Optuna, by name."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import optuna
from pydantic import Field

from naspipe.errors import InputError
from naspipe.records import Direction
from naspipe.space import Decision, SearchSpace
from naspipe.wording import listing, nearest
from naspipe_strategies.study import StudyStrategy, open_study


class OptunaStrategy(StudyStrategy):
    """Search by a sampler of Optuna, such as TPESampler, GPSampler or CmaEsSampler."""

    key = "optuna strategy"

    def __init__(
        self,
        sampler: str = "TPESampler",
        arguments: dict[str, Any] | None = None,
        batch: Annotated[int, Field(ge=1)] = 1,
    ) -> None:
        """Choose the sampler.

        Args:
            sampler: Name of a class in ``optuna.samplers``.
            arguments: Its keyword arguments, without the seed; by default Optuna's defaults.
            batch: Architectures in a generation, proposed before the outcome of any of them is known.

        Raises:
            InputError: There is no such sampler, or it refuses the arguments.
        """
        self.sampler = sampler
        self.arguments = arguments or {}
        self.batch = batch
        self._make(0)

    def _make(self, seed: int) -> optuna.samplers.BaseSampler:
        names = sorted(name for name in optuna.samplers.__all__ if name.endswith("Sampler") and name != "BaseSampler")
        if self.sampler not in names:
            raise InputError(
                f"sampler must be one of optuna.samplers, but is {self.sampler!r}.{nearest(self.sampler, names)} "
                f"There are {listing(names)}."
            )
        cls = getattr(optuna.samplers, self.sampler)
        seeded = {"seed": seed} if "seed" in inspect.signature(cls).parameters else {}
        try:
            with warnings.catch_warnings():
                # A user who names an experimental sampler needs no warning.
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                made: optuna.samplers.BaseSampler = cls(**{**seeded, **self.arguments})
        except (TypeError, ValueError) as error:
            raise InputError(f"{self.sampler} refuses its arguments {self.arguments!r}: {error}") from error
        return made

    def make_sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        """Return the named sampler."""
        return self._make(seed)

    def distribution(self, decision: Decision) -> optuna.distributions.BaseDistribution:
        """Return categories, since options have no order."""
        return optuna.distributions.CategoricalDistribution(range(len(decision.options)))

    @property
    def generation_size(self) -> int:
        """The batch."""
        return self.batch

    def start(self, space: SearchSpace, directions: Sequence[Direction], seed: int) -> None:
        """Try the sampler once, and open a study.

        Raises:
            InputError: The sampler does not support this number of objectives, or this space.
        """
        super().start(space, directions, seed)
        try:
            open_study(self._make(0), directions).ask(self._distributions)
        except (ValueError, ImportError) as error:
            raise InputError(
                f"{self.sampler} cannot search for {len(directions)} objectives in {type(space).__name__}: {error}"
            ) from error
