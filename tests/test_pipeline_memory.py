"""What stages hold while they train: what ``naspipe plan`` says, and no more."""

from __future__ import annotations

import copy
import dataclasses
from collections import defaultdict
from typing import Any

import pytest
from conftest import TINY
from random_configurations import DeepSpace
from test_training import train

from naspipe.pipeline.action import PlannedAction
from naspipe.pipeline.plan import Plan
from naspipe.pipeline.statistics import stage_statistics
from naspipe.training.components import as_config, build_components
from naspipe.training.planning import prepare_planning
from naspipe.training.trainer import SupernetTrainer


def plan_of(settings: dict[str, Any]) -> Plan:
    config = as_config({**copy.deepcopy(TINY), **settings})
    components = dataclasses.replace(build_components(config), space=DeepSpace())
    return prepare_planning(config, components).plan()


class Count:
    """Counts after each action what the parts of its stage hold, and keeps the peaks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.activations: dict[int, int] = defaultdict(int)
        self.versions: dict[int, int] = defaultdict(int)
        perform = SupernetTrainer._perform

        def counted(trainer: SupernetTrainer, planned: PlannedAction, *more: Any) -> None:
            perform(trainer, planned, *more)
            stage = planned.action.stage
            self.activations[stage] = max(self.activations[stage], self._blocks_held(trainer, stage))
            self.versions[stage] = max(self.versions[stage], self._versions_held(trainer, stage))

        monkeypatch.setattr(SupernetTrainer, "_perform", counted)

    def _parts(self, trainer: SupernetTrainer, stage: int) -> range:
        segments = trainer._planner.shape.segments
        return range(stage * segments, (stage + 1) * segments)

    def _blocks_held(self, trainer: SupernetTrainer, stage: int) -> int:
        held = 0
        for number in self._parts(trainer, stage):
            blocks = trainer._cuts[number + 1] - trainer._cuts[number]
            for subnet in trainer._parts[number]._subnets.values():
                # The loss is kept like a block, but is none.
                held += sum(min(len(tapes), blocks) for tapes in subnet.tapes.values())
        return held

    def _versions_held(self, trainer: SupernetTrainer, stage: int) -> int:
        """Return the copies of parameters beyond one of each layer, by their storage."""
        storages: dict[tuple[int, str], set[int]] = defaultdict(set)
        for number in self._parts(trainer, stage):
            for block in trainer.layers[trainer._cuts[number] : trainer._cuts[number + 1]]:
                for layer in block.values():
                    for tensors in (layer._current, *layer._kept.values()):
                        storages[layer.spec.block, layer.spec.name].add(tensors[0].data_ptr())
            for subnet in trainer._parts[number]._subnets.values():
                for readings in subnet.readings:
                    for layer, reading in readings:
                        first = next(iter(reading.tensors.values()))
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
    count = Count(monkeypatch)
    train(settings, space=DeepSpace())
    assert [count.activations[stage] for stage in range(stages)] == [row.activations for row in planned]
    assert [count.versions[stage] for stage in range(stages)] == [row.versions for row in planned]
    if stages == 4 and delay == 8:
        assert any(row.versions for row in planned)
        assert planned[0].activations > planned[-1].activations
