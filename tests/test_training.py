"""The trainer against hand-written loops: the same bits."""

from __future__ import annotations

import copy
import dataclasses
import gc
import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from conftest import TINY, TinySpace, TinyTask
from torch import Tensor, nn
from torch.nn import functional as F

from naspipe import Architecture, Block, Supernet
from naspipe.errors import InputError, TrainingError
from naspipe.files import digest_tensors
from naspipe.keys import derive_key
from naspipe.pipeline.planner import Planner
from naspipe.supernet.determinism import deterministic
from naspipe.supernet.supernet import ALWAYS_ACTIVE
from naspipe.tasks.data import EpochOrder, split_batch
from naspipe.training.boundary import backward_block, enter_block, leave_block
from naspipe.training.components import build_components
from naspipe.training.context import RunContext, as_config
from naspipe.training.planning import Planning
from naspipe.training.recorder import Recorder
from naspipe.training.session import TrainingSession
from naspipe.training.stage_model import StageModel
from naspipe.training.trainer import SubnetRecord


class Paced(Planning):
    """A planning whose planners are wrapped: their actions come at another pace."""

    pace: Callable[[Planner], Any]

    def planner(self, *arguments: Any, **more: Any) -> Any:
        return type(self).pace(super().planner(*arguments, **more))


def train(
    settings: dict[str, Any],
    space: Any = None,
    task: Any = None,
    pace: Callable[[Planner], Any] | None = None,
    recorder: Recorder | None = None,
) -> tuple[Supernet, list[SubnetRecord], StageModel]:
    config = as_config({**copy.deepcopy(TINY), **settings})
    components = build_components(config)
    components = dataclasses.replace(components, space=space or components.space, task=task or components.task)
    context = RunContext(config, components)
    if pace is not None:
        paced = type("Paced", (Paced,), {"pace": staticmethod(pace)})
        context.planning = paced(*(getattr(context.planning, field.name) for field in dataclasses.fields(Planning)))
    records: list[SubnetRecord] = []
    session = TrainingSession(context, on_subnet=records.append, recorder=recorder)
    session.run()
    return session.model.supernet, records, session.model


def digest(supernet: Supernet) -> str:
    return digest_tensors(supernet.state_dict())


def by_hand(subnets: int, optimizer: dict[str, Any], microbatches: int) -> tuple[Supernet, list[float]]:
    """Train single paths in place: plain modules, one optimizer a layer, ordinary autograd."""
    config = as_config({**copy.deepcopy(TINY), "training": {"optimizer": optimizer}})
    components = build_components(config)
    data = components.task.load(config.seed).train
    order = EpochOrder(data, 10, config.seed, "train")
    with deterministic(1, "cpu"):
        supernet = Supernet(components.space, config.seed).train()
        arguments = {key: value for key, value in optimizer.items() if key != "name"}
        optimizers: dict[tuple[int, str], torch.optim.Optimizer] = {}
        losses = []
        for y in range(subnets):
            architecture = components.sampler.draw(y)
            batch = order.batch(y)
            parts = []
            for part, piece in enumerate(split_batch(batch, microbatches)):
                x = piece.inputs
                for index, block in enumerate(supernet):
                    torch.manual_seed(derive_key(config.seed, "block", y, part, index))
                    x = block(x.clone(), architecture)
                loss = F.cross_entropy(x, piece.targets, reduction="sum") / len(batch.targets)
                loss.backward()
                parts.append(loss.item())
            losses.append(math.fsum(parts))
            for used in supernet.used_layers(architecture):
                for layer in used:
                    parameters = list(layer.parameters.values())
                    own = optimizers.setdefault(
                        (layer.block, layer.name),
                        getattr(torch.optim, optimizer["name"])(parameters, **arguments),
                    )
                    own.step()
                    own.zero_grad()
    return supernet, losses


OPTIMIZERS = [
    {"name": "SGD", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.01},
    {"name": "AdamW", "lr": 0.01, "weight_decay": 0.1},
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o["name"])
@pytest.mark.parametrize("microbatches", [1, 3])
def test_without_delay_it_is_a_hand_written_single_path_loop_bit_for_bit(
    optimizer: dict[str, Any], microbatches: int
) -> None:
    settings = {
        "subnets": 12, "batch_size": 10, "delay": 0, "optimizer": optimizer, "microbatches": microbatches,
        "schedule": {"name": "constant"},
    }  # fmt: skip
    supernet, records, _ = train({"training": settings})
    expected, losses = by_hand(12, optimizer, microbatches)
    assert digest(supernet) == digest(expected)
    assert [record.loss for record in records] == losses


def delayed_by_hand(subnets: int, delay: int) -> Supernet:
    """The same with always-active layers read from a list of snapshots, ``delay`` updates late."""
    config = as_config(TINY)
    components = build_components(config)
    order = EpochOrder(components.task.load(config.seed).train, 10, config.seed, "train")
    with deterministic(1, "cpu"):
        supernet = Supernet(components.space, config.seed).train()
        layers = supernet.layers()
        parameters = {(layer.block, path): p for layer in layers for path, p in layer.parameters.items()}
        always = [key for layer in layers if layer.name == ALWAYS_ACTIVE
                  for key in ((layer.block, path) for path in layer.parameters)]  # fmt: skip
        optimizers = {
            (layer.block, layer.name): torch.optim.SGD(list(layer.parameters.values()), lr=0.05, momentum=0.9)
            for layer in layers
        }
        newest = {key: parameters[key].detach().clone() for key in always}
        history = [newest]
        for y in range(subnets):
            architecture = components.sampler.draw(y)
            batch = order.batch(y)
            for key in always:
                parameters[key].data.copy_(history[max(0, y - delay)][key])
            x = batch.inputs
            for index, block in enumerate(supernet):
                torch.manual_seed(derive_key(config.seed, "block", y, 0, index))
                x = block(x.clone(), architecture)
            loss = F.cross_entropy(x, batch.targets, reduction="sum") / len(batch.targets)
            loss.backward()
            for key in always:
                parameters[key].data.copy_(history[-1][key])
            for used in supernet.used_layers(architecture):
                for layer in used:
                    optimizers[layer.block, layer.name].step()
                    optimizers[layer.block, layer.name].zero_grad()
            history.append({key: parameters[key].detach().clone() for key in always})
    return supernet


@pytest.mark.parametrize("delay", [0, 1, 3, 20])
def test_always_active_layers_are_read_exactly_delay_updates_late(delay: int) -> None:
    settings = {"subnets": 12, "batch_size": 10, "delay": delay, "schedule": {"name": "constant"}}
    supernet, _, _ = train({"training": settings})
    assert digest(supernet) == digest(delayed_by_hand(12, delay))


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o["name"])
def test_a_layer_that_was_not_sampled_keeps_its_initial_bits(optimizer: dict[str, Any]) -> None:
    class Never3(TinySpace):
        def is_valid(self, architecture: Architecture) -> bool:
            return architecture["op1"] != "conv3"

    space = Never3()
    initial = Supernet(space, TINY["seed"]).state_dict()
    settings = {
        "training": {"subnets": 110, "batch_size": 10, "optimizer": optimizer},
        "sampler": {"name": "uniform"},
    }
    supernet, records, model = train(settings, space=space)
    trained = supernet.state_dict()
    unused = [name for name in trained if name.startswith("blocks.2.candidates.conv3.")]
    assert len(unused) == 4
    assert all(torch.equal(trained[name], initial[name]) for name in unused)
    assert model.layers[2]["conv3"].version == 0
    for block in (1, 2, 3):
        for name, layer in model.layers[block].items():
            uses = sum((name in ("conv1", "conv3") and r.architecture[f"op{block - 1}"] == name)
                       or (name == "option_3_2" and r.architecture[f"op{block - 1}"] == (3, 2))
                       for r in records)  # fmt: skip
            assert layer.version == uses


def test_training_twice_gives_the_same_bits_and_leaves_torch_as_it_was() -> None:
    torch.manual_seed(11)
    state = torch.get_rng_state()
    one, records, _ = train({})
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.are_deterministic_algorithms_enabled()
    torch.manual_seed(12)
    two, again, _ = train({})
    assert digest(one) == digest(two)
    assert records == again
    assert [record.index for record in records] == list(range(30))
    other, _, _ = train({"seed": 4})
    assert digest(other) != digest(one)


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("delay", [0, 3])
def test_every_executor_that_equals_sequential_training_does_on_one_stage(microbatches: int, delay: int) -> None:
    training = {**TINY["training"], "microbatches": microbatches, "delay": delay}
    expected, records, _ = train({"training": training})
    for executor in ("csp", "gpipe", "one_f_one_b"):
        supernet, again, _ = train({"training": training, "executor": {"name": executor}})
        assert digest(supernet) == digest(expected), executor
        assert again == records


def test_a_bulk_reads_the_weights_of_its_start() -> None:
    training = {key: value for key, value in TINY["training"].items() if key != "delay"}
    bulk = {"training": training, "executor": {"name": "gpipe", "options": {"bulk": 4}}}
    supernet, records, _ = train(bulk)
    single, first, _ = train({"training": {**training, "delay": 0}})
    assert records[0] == first[0]
    assert records[1].loss != first[1].loss
    assert digest(supernet) != digest(single)
    assert [record.index for record in records] == list(range(30))


def test_every_setting_that_may_change_a_result_does() -> None:
    base = digest(train({})[0])
    for change in ({"delay": 0}, {"microbatches": 2}, {"clip_norm": 0.01}, {"batch_size": 12}):
        assert digest(train({"training": {**TINY["training"], **change}})[0]) != base, change


def test_learning_rates_follow_the_schedule() -> None:
    training = {
        **TINY["training"],
        "optimizer": {"name": "SGD", "lr": 0.5},
        "schedule": {"name": "linear", "warmup": 5, "final": 0.2},
        "clip_norm": 1.0,
    }
    _, records, _ = train({"training": training})
    rates = [record.lr for record in records]
    assert rates[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert rates[5] == 0.5
    assert rates[-1] == pytest.approx(0.5 * (1 - 0.8 * 24 / 25))


class Undeclared(Block):
    """Uses a layer that it does not name."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor, architecture: Architecture) -> Tensor:
        out: Tensor = self.inner(x)
        return out

    def layers(self) -> dict[str, nn.Module]:
        return {"inner": self.inner}


class Broken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("out of order")


def with_block(block: nn.Module) -> TinySpace:
    class Extended(TinySpace):
        def blocks(self) -> Iterator[nn.Module]:
            *front, head = super().blocks()
            yield from front
            yield block
            yield head

    return Extended()


def test_what_a_caller_has_set_in_torch_changes_no_bit_and_is_left_as_it_was() -> None:
    expected = digest(train({})[0])
    torch.set_default_dtype(torch.float64)
    torch.backends.mkldnn.enabled = False
    try:
        with torch.autocast("cpu"), torch.inference_mode():
            assert digest(train({})[0]) == expected
            assert torch.is_inference_mode_enabled()
            assert torch.is_autocast_enabled("cpu")
        assert torch.get_default_dtype() == torch.float64
        assert not torch.backends.mkldnn.enabled
    finally:
        torch.set_default_dtype(torch.float32)
        torch.backends.mkldnn.enabled = True


def test_a_gradient_is_left_with_the_strides_of_a_new_tensor() -> None:
    x = torch.randn(3, 4, 1, 1, requires_grad=True)
    copied, (leaf,) = enter_block(x)
    odd = torch.randn(3, 4, 1, 1).as_strided((3, 4, 1, 1), (4, 1, 4, 4))
    assert odd.is_contiguous()
    torch.autograd.backward([copied], [odd])
    assert leaf is not None
    assert leaf.grad is not None
    assert leaf.grad.stride() == torch.empty(3, 4, 1, 1).stride()


def test_a_layer_used_but_not_named_is_found_in_the_first_backward() -> None:
    with pytest.raises(
        TrainingError,
        match=r"action 0B0, subnet 0 \(op0=.*'inner\.\w+' of block 4, layer 'inner' got a gradient",
    ):
        train({}, space=with_block(Undeclared()))


def test_an_exception_in_a_block_names_action_and_subnet_and_keeps_its_cause() -> None:
    with pytest.raises(TrainingError, match=r"action 0F0, subnet 0 .*failed: RuntimeError: out of order") as error:
        train({}, space=with_block(Broken()))
    assert isinstance(error.value.__cause__, RuntimeError)


def test_a_sampler_that_draws_a_stranger_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    from naspipe_strategies.uniform import UniformSampler

    monkeypatch.setattr(UniformSampler, "draw", lambda self, index: Architecture({"edge": 1}))
    with pytest.raises(TrainingError, match=r"subnet 0: sampler UniformSampler failed: .*has no decision 'edge'"):
        train({"sampler": {"name": "uniform"}})


def test_a_loss_that_is_not_finite_ends_training_with_subnet_and_architecture() -> None:
    class Exploding(TinyTask):
        def loss(self, outputs: Any, targets: Any) -> Tensor:
            return super().loss(outputs, targets) * float("inf")

    with pytest.raises(TrainingError, match=r"subnet 0 \(op0=.*the loss must be finite, but is inf"):
        train({}, task=Exploding())


def test_more_microbatches_than_samples_are_refused() -> None:
    training = {**TINY["training"], "batch_size": 35, "microbatches": 2}
    # 36 training samples: a batch of 35 and one of 1.
    with pytest.raises(InputError, match=r"at most the samples of the smallest batch, but is 2.*has 1"):
        train({"training": training})


def test_boundaries_cut_any_nest_with_one_gradient_a_slot() -> None:
    shared = torch.randn(3, 4, requires_grad=True) * 1
    payload = {
        "a": shared,
        "b": (shared, shared.t()),
        "mask": torch.tensor([True]),
        "ids": torch.arange(3),
        "none": None,
        "wide": torch.ones(1, 1).expand(2, 2),
        "text": "kept",
    }
    copied, leaves = enter_block(payload)
    assert [leaf is not None for leaf in leaves] == [True, True, True, False, False, False, False, False]
    assert copied["none"] is None
    assert copied["text"] == "kept"
    tensors = [copied["a"], *copied["b"], copied["mask"], copied["ids"], copied["wide"]]
    assert all(tensor.is_contiguous() for tensor in tensors)
    assert len({tensor.data_ptr() for tensor in tensors}) == len(tensors)
    copied["a"].mul_(2)  # a block may change its input in place
    output = (copied["a"] + copied["b"][0] * 3, copied["b"][1].detach())
    gradients = backward_block(leave_block(output), [torch.ones(3, 4), None], leaves)
    assert torch.equal(gradients[0], torch.full((3, 4), 2.0))
    assert torch.equal(gradients[1], torch.full((3, 4), 3.0))
    assert gradients[2] is None
    assert shared.grad_fn is not None


def test_a_supernet_is_freed_as_soon_as_it_is_let_go() -> None:
    gc.collect()
    gc.disable()
    try:
        supernet, _, trainer = train({"executor": {"name": "csp", "stages": 2}})
        parameter = weakref.ref(next(supernet.parameters()))
        del supernet, trainer
        assert parameter() is None
    finally:
        gc.enable()
