"""The measures of candidates, each taken once; those by the clock are kept in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from naspipe.config.schema import RunConfig
from naspipe.search.measure import Candidate, Measure, measure_candidate
from naspipe.space import Architecture, SearchSpace
from naspipe.tasks.data import Dataset


class MeasureCache:
    """Takes the measures of candidates."""

    def __init__(
        self,
        measures: Mapping[str, Measure],
        space: SearchSpace,
        extract: Callable[[Architecture], nn.Module],
        dataset: Dataset,
        config: RunConfig,
        timed: Mapping[str, Mapping[str, float]] | None = None,
        on_timed: Callable[[dict[str, Any]], None] = lambda record: None,
    ) -> None:
        """Take nothing yet.

        Args:
            measures: By the names of their metrics.
            space: The search space.
            extract: Gives the subnet of an architecture.
            dataset: Gives inputs.
            config: Gives device and how times are taken.
            timed: What was measured by the clock before, by the JSON of the architecture.
            on_timed: Called with what is measured by the clock: ``architecture`` and ``metrics``.
        """
        self._measures = measures
        self._space = space
        self._extract = extract
        self._dataset = dataset
        self._config = config
        self._timed = {text: dict(metrics) for text, metrics in (timed or {}).items()}
        self._on_timed = on_timed
        self._known: dict[Architecture, dict[str, int | float]] = {}

    def of(self, architecture: Architecture, names: Sequence[str] | None = None) -> dict[str, int | float]:
        """Return the measures of an architecture, all or those of some names.

        Raises:
            SearchError: A measure failed.
        """
        found = self._known.setdefault(architecture, {})
        missing = [name for name in names or self._measures if name not in found]
        if missing:
            device = self._config.training.device
            candidate = Candidate(
                self._space,
                architecture,
                lambda: self._extract(architecture),
                self._dataset,
                device,
                self._config.search.latency,
            )
            for name in missing:
                found.update(self._take(name, candidate))
        return dict(found)

    def _take(self, name: str, candidate: Candidate) -> Mapping[str, int | float]:
        measure = self._measures[name]
        if not measure.timed:
            return measure_candidate(name, measure, candidate)
        text = candidate.architecture.to_json()
        before = self._timed.setdefault(text, {})
        if name not in before:
            metrics = measure_candidate(name, measure, candidate)
            self._on_timed({"architecture": dict(candidate.architecture), "metrics": metrics})
            before.update(metrics)
        return {key: value for key, value in before.items() if key == name or key.startswith(f"{name}_")}
