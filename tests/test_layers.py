"""A layer's versions: any legal order of reads and updates gives the bits of the sequential one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from naspipe.supernet.supernet import LayerParameters
from naspipe.training.layers import Layer, Snapshot


def make(strict: bool, delay: int, name: str = "SGD") -> tuple[Layer, nn.Parameter]:
    parameter = nn.Parameter(torch.arange(4.0))

    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        if name == "SGD":
            return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        return torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.1)

    return Layer(
        LayerParameters(0, "a", strict, {"w": parameter}), optimizer, delay=None if strict else delay
    ), parameter


def backward(snapshot: Snapshot, subnet: int) -> None:
    """Leave a gradient that depends on the subnet and on what it read."""
    tensor = snapshot.tensors["w"]
    (tensor * tensor * (subnet + 1)).sum().backward()


def reference(subnets: int, delay: int, name: str) -> Tensor:
    """Fold the gradients in order, each at the version of ``delay`` updates ago."""
    layer, parameter = make(True, 0, name)
    history = [parameter.detach().clone()]
    optimizer = layer._make_optimizer([parameter])
    for subnet in range(subnets):
        read = history[max(0, subnet - delay)].clone().requires_grad_()
        (read * read * (subnet + 1)).sum().backward()
        parameter.grad = read.grad
        optimizer.param_groups[0]["lr"] = 0.01
        optimizer.step()
        parameter.grad = None
        history.append(parameter.detach().clone())
    return parameter.detach()


@settings(deadline=None)
@given(
    st.integers(0, 5),
    st.integers(1, 12),
    st.sampled_from(["SGD", "AdamW"]),
    st.randoms(use_true_random=False),
)
def test_always_active_layers_fold_in_order_whatever_order_subnets_run_in(
    delay: int, subnets: int, name: str, choose: object
) -> None:
    layer, parameter = make(False, delay, name)
    snapshots: dict[int, Snapshot] = {}
    updated: set[int] = set()
    started: set[int] = set()
    while len(updated) < subnets:
        # F(y) follows every U(x), x <= y - 1 - D; U(y) follows F(y).
        ready = [
            ("read", y) for y in range(subnets) if y not in started and all(x in updated for x in range(y - delay))
        ]
        ready += [("update", y) for y in snapshots]
        step, subnet = choose.choice(ready)
        if step == "read":
            snapshots[subnet] = layer.read(subnet)
            assert snapshots[subnet].version == max(0, subnet - delay)
            started.add(subnet)
        else:
            snapshot = snapshots.pop(subnet)
            backward(snapshot, subnet)
            layer.update(subnet, snapshot, 0.01)
            updated.add(subnet)
        assert layer.num_versions <= delay + 1
        assert len(layer._unread) <= delay + 1
    assert layer.version == subnets
    assert torch.equal(parameter.detach(), reference(subnets, delay, name))


def test_a_strict_layer_is_updated_in_place_while_nobody_else_reads_it() -> None:
    layer, parameter = make(True, 0)
    place = parameter.data_ptr()
    for subnet in range(3):
        snapshot = layer.read(subnet)
        backward(snapshot, subnet)
        layer.update(subnet, snapshot, 0.1)
    assert parameter.data_ptr() == place
    assert layer.version == 3


def test_a_reader_in_flight_keeps_the_version_it_read() -> None:
    layer, parameter = make(True, 0)
    first, second = layer.read(0), layer.read(1)
    before = second.tensors["w"].detach().clone()
    backward(first, 0)
    layer.update(0, first, 0.1)
    assert torch.equal(second.tensors["w"].detach(), before)
    assert not torch.equal(parameter.detach(), before)
    backward(second, 1)
    assert torch.equal(second.tensors["w"].grad, 4 * before)


def test_a_backward_through_a_version_that_was_overwritten_is_refused() -> None:
    layer, _ = make(True, 0)
    snapshot = layer.read(0)
    loss = (snapshot.tensors["w"] ** 2).sum()
    # As a broken plan would: the update comes before the backward, and nobody is known to read.
    snapshot.tensors["w"].grad = torch.ones(4)
    layer.update(0, snapshot, 0.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_reader_goes_backward_through_its_version_after_another_update() -> None:
    layer, _ = make(True, 0)
    first, second = layer.read(0), layer.read(1)
    loss = (second.tensors["w"] ** 2).sum()
    backward(first, 0)
    layer.update(0, first, 0.1)
    loss.backward()
    assert torch.equal(second.tensors["w"].grad, 2 * torch.arange(4.0))


def test_a_read_without_gradient_advances_the_version_and_changes_nothing() -> None:
    layer, parameter = make(True, 0, "AdamW")
    before = parameter.detach().clone()
    layer.update(0, layer.read(0), 0.1)
    assert layer.version == 1
    assert layer.optimizer is None
    assert torch.equal(parameter.detach(), before)


def test_a_frozen_layer_is_read_and_never_updated() -> None:
    parameter = nn.Parameter(torch.ones(2), requires_grad=False)
    layer = Layer(LayerParameters(0, "a", False, {"w": parameter}), lambda p: torch.optim.SGD(p), delay=1)
    place = parameter.data_ptr()
    for subnet in range(4):
        snapshot = layer.read(subnet)
        assert not snapshot.tensors["w"].requires_grad
        layer.update(subnet, snapshot, 0.1)
    assert torch.equal(parameter, torch.ones(2))
    assert parameter.data_ptr() == place
