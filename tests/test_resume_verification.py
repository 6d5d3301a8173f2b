"""Trainings that go on from checkpoints are compared with those that were not broken off; differences are found."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import TINY, Command

from naspipe.errors import InputError
from naspipe.training.checkpoint import CheckpointFolder
from naspipe.training.context import as_config
from naspipe.training.layers import Layer, LayerState
from naspipe.verification.equality import Combination
from naspipe.verification.resume import ResumeVerdict, verify_resuming
from naspipe_strategies.spaced import SpacedSampler


class Forgetful(SpacedSampler):
    """A sampler that does not go on where it was."""

    def restore(self, state: dict[str, Any]) -> None:
        """Forget it."""


def checks(executors: list[str], stages: list[int], config: dict[str, Any] = TINY, **more: Any) -> list[ResumeVerdict]:
    settings: dict[str, Any] = {"transports": ["in-process"], "subnets": 12, **more}
    return list(verify_resuming(as_config(config), executors, stages, **settings))


def differences(found: list[ResumeVerdict]) -> list[str]:
    return [one.difference for check in found for one in check.continuations]


def test_each_training_goes_on_from_three_checkpoints_under_others_of_an_equal_contract() -> None:
    settings = copy.deepcopy(TINY)
    settings["training"]["optimizer"] = {"name": "AdamW", "lr": 0.01}
    found = checks(["csp", "gpipe:bulk=2"], [2, 3], settings)
    assert [(check.writer.executor, check.writer.stages) for check in found] == [
        ("sequential", 1), ("csp", 2), ("csp", 3), ("gpipe:bulk=2", 2), ("gpipe:bulk=2", 3)
    ]  # fmt: skip
    assert all(check.kept for check in found)
    assert differences(found) == [""] * sum(len(check.continuations) for check in found)
    assert [[one.subnet for one in check.continuations] for check in found] == [[3, 6, 9]] * 3 + [[4, 8]] * 2
    assert [one.heir.executor for one in found[1].continuations] == ["csp", "sequential", "csp"]
    assert [one.heir.stages for one in found[1].continuations] == [3, 1, 3]
    assert {one.heir for one in found[4].continuations} == {Combination("gpipe:bulk=2", 2, "in-process")}
    assert found[4].reference == "gpipe:bulk=2 on 2 stages, in-process"
    # What is compared was trained, under whichever contract: the two give other bits.
    assert found[3].continuations[0].bits != found[2].continuations[0].bits


def test_processes_go_on_from_what_one_process_wrote_and_the_other_way_round(forked_processes: None) -> None:
    found = checks(["csp"], [2], transports=["distributed"], subnets=2)
    assert [check.kept for check in found] == [True, True]
    assert [[one.heir.transport for one in check.continuations] for check in found] == [
        ["distributed"], ["in-process"]
    ]  # fmt: skip


def test_what_cannot_be_resumed_is_not_trained_and_says_why() -> None:
    _, stale = checks(["pipedream"], [2], subnets=4)
    assert stale.written is None
    assert stale.kept
    assert stale.reason == "cannot be resumed: under stale(1) subnets read weights that are being changed meanwhile"
    *_, bulk = checks(["gpipe:bulk=20"], [2])
    assert bulk.continuations == []
    assert bulk.reason == "12 subnets cannot be divided under flush(20)"
    with pytest.raises(InputError, match="at least 2 subnets to be interrupted between them, but has 1.*--subnets"):
        checks(["csp"], [1], subnets=1)


def test_a_sampler_that_forgets_is_found() -> None:
    found = checks(["csp"], [2], {**TINY, "sampler": {"name": "test_resume_verification:Forgetful", "distance": 2}})
    assert [check.written.kept for check in found if check.written] == [True, True]
    assert not any(check.kept for check in found)
    for text in differences(found):
        assert text.startswith("loss of subnet ")


Change = Callable[[LayerState], LayerState]


def without(prefix: str) -> Change:
    return lambda state: state._replace(
        tensors={name: tensor for name, tensor in state.tensors.items() if not name.startswith(prefix)}
    )


@pytest.mark.parametrize(
    "change",
    [
        without("optimizer/"),
        without("weights/"),
        lambda state: state._replace(facts=state.facts.model_copy(update={"stepped": False})),
    ],
    ids=["optimizer", "weights", "stepped"],
)
def test_a_layer_that_drops_part_of_its_state_is_found(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    restore = Layer.restore
    monkeypatch.setattr(Layer, "restore", lambda self, state: restore(self, change(state)))
    settings = copy.deepcopy(TINY)
    settings["training"]["optimizer"] = {"name": "SGD", "lr": 0.1, "momentum": 0.9}
    found = checks(["sequential"], [1], settings)
    assert found[0].written is not None
    assert found[0].written.kept
    assert not found[0].kept
    texts = differences(found)
    assert texts[0].startswith("loss of subnet ")
    assert "; layer " in texts[0]
    # Near the end no loss may show it any more.
    assert all("layer " in text for text in texts)


def test_a_strict_layer_that_forgets_its_version_is_found_though_its_weights_are_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    restore = Layer.restore

    def unversioned(self: Layer, state: LayerState) -> None:
        restore(self, state)
        if self._delay is None:
            self.version = 0

    monkeypatch.setattr(Layer, "restore", unversioned)
    found = checks(["sequential"], [1])
    for text in differences(found):
        assert text.startswith("layer ")


def test_a_training_that_begins_anew_is_found_though_its_result_is_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CheckpointFolder, "latest", lambda self: None)
    found = checks(["sequential"], [1])
    assert differences(found) == [f"it began with subnet 0 instead of {subnet}" for subnet in (3, 6, 9)]
    assert not found[0].kept


def test_the_command_prints_a_table_and_ends_with_1_if_something_differs(
    command: Command, tmp_path: Path, tiny: dict[str, Any]
) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny))
    options = ("--resume", "--executors", "csp,pipedream", "--stages", "2", "--subnets", 8)
    code, text, _ = command("verify", path, *options)
    assert code == 0
    assert "writes 2, 4, 6" in text
    assert text.count("equals sequential on 1 stage, in-process") == 8
    assert "cannot be resumed: under stale(1)" in text
    assert text.endswith("The trainings that were resumed from checkpoints equal those that were not interrupted.\n")
    sampler = "sampler={name: test_resume_verification:Forgetful, distance: 2}"
    code, text, _ = command("verify", path, *options, "--set", sampler)
    assert code == 1
    assert "DIFFERS from sequential on 1 stage, in-process: loss of subnet " in text
    assert text.endswith("Something differs, as said above.\n")
