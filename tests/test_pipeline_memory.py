"""What stages hold while they train: what ``naspipe plan`` says, and no more."""

from __future__ import annotations

import copy
import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from conftest import TINY
from random_configurations import DeepSpace
from test_training import train

from naspipe.pipeline.action import PlannedAction
from naspipe.pipeline.parts import PipelineParts
from naspipe.pipeline.plan import Plan
from naspipe.pipeline.statistics import stage_statistics
from naspipe.training.components import build_components
from naspipe.training.context import RunContext, as_config
from naspipe.training.part import LayerVersion
from naspipe.training.recorder import Recorder
from naspipe.training.stage_model import StageModel


def plan_of(settings: dict[str, Any]) -> Plan:
    config = as_config({**copy.deepcopy(TINY), **settings})
    components = dataclasses.replace(build_components(config), space=DeepSpace())
    return RunContext(config, components).planning.plan()


class Count(Recorder):
    """Counts after each action what the parts of its stage hold, and keeps the peaks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, parts: PipelineParts) -> None:
        super().__init__()
        self.activations: dict[int, int] = defaultdict(int)
        self.versions: dict[int, int] = defaultdict(int)
        self.parts = parts
        init = StageModel.__init__

        def keep(model: StageModel, *arguments: Any, **more: Any) -> None:
            init(model, *arguments, **more)
            self.model = model

        monkeypatch.setattr(StageModel, "__init__", keep)

    def end(self, planned: PlannedAction, versions: Sequence[LayerVersion]) -> None:
        super().end(planned, versions)
        stage = planned.action.stage
        self.activations[stage] = max(self.activations[stage], self._blocks_held(stage))
        self.versions[stage] = max(self.versions[stage], self._versions_held(stage))

    def _blocks_held(self, stage: int) -> int:
        held = 0
        for number in self.parts.of_stage(stage):
            part = self.model.parts[number]
            for subnet in part._subnets.values():
                # The loss is kept like a block, but is none.
                held += sum(min(len(tapes), len(part._blocks)) for tapes in subnet.tapes.values())
        return held

    def _versions_held(self, stage: int) -> int:
        """Return the copies of parameters beyond one of each layer, by their storage."""
        storages: dict[tuple[int, str], set[int]] = defaultdict(set)
        for number in self.parts.of_stage(stage):
            part = self.model.parts[number]
            for block in part._layers:
                for layer in block.values():
                    for tensors in (layer._current, *layer._kept.values()):
                        storages[layer.spec.block, layer.spec.name].add(tensors[0].data_ptr())
            for subnet in part._subnets.values():
                for snapshots in subnet.snapshots:
                    for layer, snapshot in snapshots:
                        first = next(iter(snapshot.tensors.values()))
                        storages[layer.spec.block, layer.spec.name].add(first.data_ptr())
        return sum(len(found) - 1 for found in storages.values())


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (2, 3), (4, 1), (4, 3)])
@pytest.mark.parametrize(
    ("executor", "delay"),
    [
        ({"name": "csp"}, 0), ({"name": "csp"}, 3), ({"name": "csp"}, 8), ({"name": "csp", "segments": 2}, 8),
        ({"name": "gpipe"}, 2), ({"name": "gpipe", "options": {"bulk": 4}}, None), ({"name": "one_f_one_b"}, 2),
        ({"name": "pipedream"}, None),
    ],
    ids=["csp-0", "csp-3", "csp-8", "segments-8", "gpipe", "bulk", "one_f_one_b", "pipedream"],
)  # fmt: skip
def test_stages_hold_the_activations_and_versions_that_the_plan_says(
    executor: dict[str, Any], delay: int | None, stages: int, microbatches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = {**TINY["training"], "subnets": 16, "batch_size": 6, "delay": delay, "microbatches": microbatches}
    settings = {"executor": {**executor, "stages": stages}, "training": training, "sampler": {"name": "uniform"}}
    planned = stage_statistics(plan_of(settings))
    count = Count(monkeypatch, PipelineParts(stages, executor.get("segments", 1)))
    train(settings, space=DeepSpace(), recorder=count)
    assert [count.activations[stage] for stage in range(stages)] == [row.activations for row in planned]
    assert [count.versions[stage] for stage in range(stages)] == [row.versions for row in planned]
    if stages == 4 and delay == 8:
        assert any(row.versions for row in planned)
        assert planned[0].activations > planned[-1].activations
