"""The values of measures: each subnet is measured once, and timed values are handed on to be saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from naspipe.config.schema import RunConfig
from naspipe.search.measure import Measure, Subnet, measure_subnet
from naspipe.space import Architecture, SearchSpace
from naspipe.tasks.data import Dataset


class MeasureCache:
    """Measures subnets, and remembers the values."""

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
        """Prepare; nothing is measured yet.

        Args:
            measures: The measures, by the names of their metrics.
            space: The search space.
            extract: Returns the subnet of an architecture.
            dataset: The split that gives inputs.
            config: Gives the device and the settings of timings.
            timed: Earlier values of timed measures, by the JSON of the architecture.
            on_timed: Called with each new value of a timed measure, as a record of ``architecture`` and ``metrics``.
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
        """Return the values of an architecture's measures: of all, or of those named.

        Raises:
            SearchError: A measure failed.
        """
        found = self._known.setdefault(architecture, {})
        missing = [name for name in names or self._measures if name not in found]
        if missing:
            device = self._config.training.device
            subnet = Subnet(
                self._space,
                architecture,
                lambda: self._extract(architecture),
                self._dataset,
                device,
                self._config.search.latency,
            )
            for name in missing:
                found.update(self._take(name, subnet))
        return dict(found)

    def _take(self, name: str, subnet: Subnet) -> Mapping[str, int | float]:
        measure = self._measures[name]
        if not measure.timed:
            return measure_subnet(name, measure, subnet)
        text = subnet.architecture.to_json()
        before = self._timed.setdefault(text, {})
        if name not in before:
            metrics = measure_subnet(name, measure, subnet)
            self._on_timed({"architecture": dict(subnet.architecture), "metrics": metrics})
            before.update(metrics)
        return {key: value for key, value in before.items() if key == name or key.startswith(f"{name}_")}
