"""What goes wrong in a stage ends every process with a message that names the place; what is legal does not."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import TINY, Command, TinySpace, TinyTask
from test_pipeline_processes import children, digests, settings
from torch import Tensor, nn

from naspipe import Architecture, Batch, Block, ChoiceBlock, Dataset, Splits, Supernet
from naspipe.errors import TrainingError
from naspipe.supernet.meta import build_on_meta
from naspipe.training.context import RunContext, as_config
from naspipe.training.spec_check import SpecCheck
from naspipe.training.tensor_spec import BoundarySpecs, spec_of
from naspipe.verification.equality import train_once


@pytest.fixture(autouse=True)
def paths(forked_processes: None) -> None:
    """Let the stages' processes be forks; test_pipeline_processes.py starts new ones."""


def in_stage() -> bool:
    """Tell whether this is the process of a stage; before, everything is tried once and must work."""
    return "RANK" in os.environ


class BrokenData(Dataset):
    """Cannot be read from the fifth batch of the training on."""

    def __init__(self, data: Dataset) -> None:
        self.data, self.calls = data, 0

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, indices: Any, key: int) -> Batch:
        self.calls += in_stage()
        # Before, three batches are compared with those of the other processes.
        if self.calls == 3 + 5:
            raise OSError("my disk is full")
        return self.data.batch(indices, key)


class BrokenTask(TinyTask):
    def load(self, seed: int) -> Splits:
        splits = super().load(seed)
        return Splits(BrokenData(splits.train), splits.validation, splits.test)


class _BrokenBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise ValueError("my backward is broken")


class Stage0(nn.Module):
    """The last block of stage 0; subclasses go wrong."""

    def forward(self, x: Tensor) -> Any:
        return self.work(x) if in_stage() and not x.is_meta else x

    def work(self, x: Tensor) -> Any:
        return x


class BrokenForward(Stage0):
    def work(self, x: Tensor) -> Any:
        raise ValueError("my forward is broken")


class BrokenBackward(Stage0):
    def work(self, x: Tensor) -> Any:
        return _BrokenBackward.apply(x)


class Cropped(Stage0):
    """The shape of its output depends on values, which the meta device does not have."""

    def work(self, x: Tensor) -> Any:
        return x[..., : 3 if x.max() > 0 else 4]


class FaultySpace(TinySpace):
    def __init__(self, fault: str = "Stage0") -> None:
        super().__init__()
        self.fault = fault

    def blocks(self) -> Iterator[nn.Module]:
        # All are built before the first is yielded, which a space may do.
        first, *rest = super().blocks()
        yield first
        yield globals()[self.fault]()
        yield from rest


@pytest.mark.parametrize(
    ("plugins", "messages"),
    [
        (
            {"task": {"name": "test_pipeline_failures:BrokenTask"}},
            ["4, subnet 4 (op0=", "batch 4 of the training data failed: OSError: my disk is full"],
        ),
        (
            {"space": {"name": "test_pipeline_failures:FaultySpace", "fault": "BrokenForward"}},
            ["action 0F0, subnet 0 (op0=", "block 1 (FixedBlock) failed: ValueError: my forward is broken"],
        ),
        (
            {"space": {"name": "test_pipeline_failures:FaultySpace", "fault": "BrokenBackward"}},
            ["action 0B0, subnet 0 (op0=", "block 1 (FixedBlock) failed: ValueError: my backward is broken"],
        ),
        (
            {"space": {"name": "test_pipeline_failures:FaultySpace", "fault": "Cropped"}},
            [
                "action 0F0, subnet 0 (op0=", "block 1 (FixedBlock) must return what it returns for zeros on the meta "
                "device, float32 (10, 4, 4, 4), since that is what other stages expect, but returned float32 "
                "(10, 4, 4, 3). The tensor spec of its output must not depend on the values of its input",
            ],
        ),
    ],
    ids=["data", "forward", "backward", "values"],
)  # fmt: skip
def test_a_failure_in_a_stage_ends_all_and_names_subnet_action_and_block(
    command: Command, tmp_path: Path, plugins: dict[str, Any], messages: list[str]
) -> None:
    # A stage that waited for another would wait longer than a test may take.
    path = tmp_path / "faulty.yaml"
    stages = {"partition": [2, 4] if "space" in plugins else [2, 3]}
    path.write_text(yaml.safe_dump({**settings(timeout=1000, **stages), **plugins}))
    code, _, errors = command("train", path, "--out", tmp_path / "out")
    assert code == 1, errors
    for message in ["Error: the process of stage ", "ended with code 1: ", *messages]:
        assert message in errors
    assert children() == []


class _SleepyBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        sleep()
        return gradients[0]


def sleep() -> None:
    if in_stage():
        time.sleep(random.SystemRandom().choice([0, 0, 0, 0.03]))


class Sleepy(nn.Module):
    """Takes a while, forward and backward, and sometimes not."""

    def forward(self, x: Tensor) -> Tensor:
        sleep()
        return _SleepyBackward.apply(x)  # type: ignore[no-untyped-call]


class SleepySpace(TinySpace):
    def candidate(self, option: Any) -> nn.Module:
        return nn.Sequential(super().candidate(option), Sleepy())

    def blocks(self) -> Iterator[nn.Module]:
        first, *rest = super().blocks()
        yield nn.Sequential(first, Sleepy())
        yield from rest


def test_random_delays_in_every_process_change_no_bit(tmp_path: Path) -> None:
    config = {**settings(stages=3), "space": {"name": "test_pipeline_failures:SleepySpace"}}
    config["training"] = {**TINY["training"], "microbatches": 2, "delay": 4}
    one = {**config, "executor": {"name": "sequential"}}
    assert digests(config, tmp_path / "many") == digests(one, tmp_path / "one")


# SpecCheck


class Tupled(Block):
    """Returns a tuple where the choice is to skip, and a tensor elsewhere; a tuple holds a mask as well."""

    def __init__(self, tells: bool) -> None:
        super().__init__()
        self.tells = tells

    def forward(self, x: Any, architecture: Architecture) -> Any:
        return (x, torch.ones(3, dtype=torch.bool, device=x.device)) if architecture["op0"] == "skip" else x

    def variant(self, architecture: Architecture) -> Any:
        return architecture["op0"] if self.tells else "all"


class Joined(ChoiceBlock):
    """Takes either."""

    def forward(self, x: Any, architecture: Architecture) -> Any:
        return super().forward(x[0] if isinstance(x, tuple) else x, architecture)


class TupledSpace(TinySpace):
    def __init__(self, tells: bool = True) -> None:
        super().__init__()
        self.tells = tells

    def blocks(self) -> Iterator[nn.Module]:
        stem, _, _, _, head = super().blocks()
        yield stem
        yield Tupled(self.tells)
        for decision in self.decisions:
            yield Joined(decision, {o: self.candidate(o) for o in decision.options})
        yield head


TUPLED: dict[str, Any] = {"space": {"name": "test_pipeline_failures:TupledSpace"}}
LIE = (
    r"action 0F\d+, subnet \d+ \(op0=.*: block 1 \(Tupled\) must return the same tensor spec for all architectures of "
    r"its variant 'all', but returned (.*) for another one, and (.*) now\. variant\(\) must return different"
)


def test_another_variant_may_return_another_structure(tmp_path: Path) -> None:
    config = {**settings(partition=[2, 4]), **TUPLED}
    one = {**config, "executor": {"name": "sequential"}}
    assert digests(config, tmp_path / "many") == digests(one, tmp_path / "one")


@pytest.mark.parametrize("executor", [{"name": "sequential"}, {"name": "csp", "stages": 2, "partition": [2, 4]}])
def test_architectures_of_one_variant_that_differ_in_structure_are_named(executor: dict[str, Any]) -> None:
    config = as_config({**TINY, "executor": executor, "space": {**TUPLED["space"], "tells": False}})
    with pytest.raises(TrainingError, match=LIE) as caught:
        train_once(RunContext.load(config))
    assert "(float32 (10, 4, 4, 4), bool (3,))" in str(caught.value)


def test_a_structure_that_other_processes_do_not_expect_is_not_sent() -> None:
    space = TupledSpace(tells=False)
    forms = SpecCheck(list(Supernet(space, 0)), BoundarySpecs(build_on_meta(space, 0)))
    skip, other = (space.architecture({"op0": op, "op1": "skip", "op2": "skip"}) for op in ("skip", "conv1"))
    x = spec_of(torch.zeros(10, 1, 4, 4))
    y = spec_of(torch.zeros(10, 4, 4, 4, requires_grad=True))
    forms.check_sent(range(2), other, [x, y, y], x)
    came = torch.zeros(10, 4, 4, 4, requires_grad=True), torch.ones(3, dtype=torch.bool)
    with pytest.raises(TrainingError, match=LIE.partition("block 1")[1] + LIE.partition("block 1")[2]):
        forms.check_sent(range(2), skip, [x, y, spec_of(came)], x)


class Lengths(Block):
    """Returns what depends on values: a shape and a number."""

    def forward(self, x: Any, architecture: Architecture) -> Any:
        if x.is_meta:
            return {"x": x, "most": 0.0}
        return {"x": x[: int((x.sum(1) > 0).sum())], "most": float(x.max())}

    def variant(self, architecture: Architecture) -> Any:
        return None


class LengthsSpace(TinySpace):
    def blocks(self) -> Iterator[nn.Module]:
        yield Lengths()
        yield from super().blocks()


def forms_of_lengths() -> tuple[SpecCheck, BoundarySpecs, list[Architecture]]:
    space = LengthsSpace()
    signatures = BoundarySpecs(build_on_meta(space, 0))
    return SpecCheck(list(Supernet(space, 0)), signatures), signatures, [space.random_architecture(s) for s in _rngs()]


def _rngs() -> Iterator[random.Random]:
    return (random.Random(seed) for seed in range(2))


def test_a_form_that_depends_on_values_is_no_business_of_the_variant() -> None:
    forms, _, (one, other) = forms_of_lengths()
    block = Lengths()
    for architecture, x in ((one, torch.ones(3, 2)), (one, -torch.ones(3, 2)), (other, torch.zeros(3, 2))):
        forms.check_variant(0, architecture, spec_of(x), spec_of(block(x, architecture)))


@pytest.mark.parametrize(
    ("x", "came"),
    [(torch.tensor([[1.0, 1.0], [-1.0, 0.0]]), "float32 (1, 2)"), (torch.ones(2, 2), "'most': 1.0")],
    ids=["shape", "number"],
)
def test_shapes_and_numbers_that_other_processes_cannot_know_are_not_sent(x: Tensor, came: str) -> None:
    forms, _, (architecture, _) = forms_of_lengths()
    passed = [spec_of(x), spec_of(Lengths()(x, architecture))]
    with pytest.raises(TrainingError, match=r"block 0 \(Lengths\) must return what it returns for zeros") as caught:
        forms.check_sent(range(1), architecture, passed, spec_of(x))
    assert "{'x': float32 (2, 2) without gradient, 'most': 0.0}" in str(caught.value)
    assert came in str(caught.value).partition("but returned ")[2]
