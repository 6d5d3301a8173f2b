"""The candidate layers of the transformer spaces, each of the 96 by itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from naspipe.errors import SpaceError
from naspipe_spaces.transformer.candidates import CANDIDATES, COUNTS, Candidate, choose_candidates
from naspipe_spaces.transformer.layers import DecoderLayer, EncoderLayer, Residual, SequenceLayer
from naspipe_spaces.transformer.lm import TransformerLM
from naspipe_spaces.transformer.operators import (
    LightweightConvolution,
    SelfAttention,
    SeparableConvolution,
    attend,
)
from naspipe_spaces.transformer.seq2seq import TransformerSeq2Seq
from naspipe_spaces.transformer.vit import VisionTransformer

WIDTH = 16
SAMPLES, LENGTH = 3, 9

each_candidate = pytest.mark.parametrize("candidate", CANDIDATES, ids=lambda candidate: candidate.name)


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make(layer: Callable[..., nn.Module], candidate: Candidate, causal: bool, *more: int) -> Any:
    """A layer in evaluation mode, always with the same weights."""
    torch.manual_seed(0)
    return layer(candidate.operator(WIDTH, causal), WIDTH, 0.1, *more).eval()


def mask_of(*lengths: int, total: int = LENGTH) -> Tensor:
    return torch.arange(total) < torch.tensor(lengths).unsqueeze(1)


def test_there_are_24_operators_at_four_inner_widths() -> None:
    names = [candidate.name for candidate in CANDIDATES]
    assert names[:24] == [
        "conv1x1", "conv3x1", "conv5x1", "sep_conv3", "sep_conv5", "sep_conv7", "sep_conv9", "sep_conv11",
        "light_conv3_h1", "light_conv3_h4", "light_conv3_h16", "light_conv5_h1", "light_conv5_h4", "light_conv5_h16",
        "light_conv7_h1", "light_conv7_h4", "light_conv7_h16", "light_conv15_h1", "light_conv15_h4",
        "light_conv15_h16", "attention_h4", "attention_h8", "attention_h16", "glu",
    ]  # fmt: skip
    assert names[24:] == [f"{name}_w{widening}" for widening in (2, 3, 4) for name in names[:24]]


@pytest.mark.parametrize("count", COUNTS)
def test_candidates_of_a_block_all_differ_in_a_parameters_shape_or_in_heads(count: int) -> None:
    kinds = set()
    for candidate in choose_candidates(count):
        operator = candidate.operator(WIDTH, causal=False)
        shapes = tuple((path, tuple(p.shape)) for path, p in operator.named_parameters())
        kinds.add((type(operator), shapes, getattr(operator, "heads", None)))
    assert len(kinds) == len({candidate.name for candidate in choose_candidates(count)}) == count


def test_every_inner_width_changes_the_parameters_of_every_operator() -> None:
    for place in range(24):
        sizes = [
            sum(p.numel() for p in CANDIDATES[place + 24 * w].operator(WIDTH, True).parameters()) for w in range(4)
        ]
        assert sizes == sorted(set(sizes)), CANDIDATES[place].name


@each_candidate
def test_a_later_position_changes_no_earlier_one(candidate: Candidate) -> None:
    layer = make(SequenceLayer, candidate, True)
    x = seeded(SAMPLES, LENGTH, WIDTH)
    before, _ = layer((x, None))
    for place in range(LENGTH):
        changed = x.clone()
        changed[:, place] += 1
        after, _ = layer((changed, None))
        assert torch.equal(after[:, :place], before[:, :place])
        assert not torch.equal(after[:, place], before[:, place])


@each_candidate
def test_positions_are_seen_as_far_as_the_operator_reaches(candidate: Candidate) -> None:
    x = seeded(1, 31, WIDTH)
    changed = x.clone()
    changed[:, 15] = 0
    reach = 15 if candidate.kind == "attention" else candidate.kernel // 2
    back = 15 if candidate.kind == "attention" else max(candidate.kernel - 1, 0)
    for causal, seen in ((False, range(15 - reach, 16 + reach)), (True, range(15, 16 + back))):
        layer = make(SequenceLayer, candidate, causal)
        before, after = layer((x, None))[0], layer((changed, None))[0]
        assert [place for place in range(31) if not torch.equal(before[0, place], after[0, place])] == list(seen)


@each_candidate
@pytest.mark.parametrize("causal", [False, True], ids=["both-ways", "causal"])
def test_what_stands_at_padding_changes_no_bit(candidate: Candidate, causal: bool) -> None:
    layer = make(SequenceLayer, candidate, causal)
    # Behind, in front, and within: no place of the padding is special.
    for mask in (mask_of(9, 5, 1), ~mask_of(0, 3, 8), mask_of(2, 9, 9) | ~mask_of(4, 0, 0)):
        x = seeded(SAMPLES, LENGTH, WIDTH)
        before, _ = layer((x, mask))
        for content in (1e4, float("inf"), float("nan")):
            after, _ = layer((x.masked_fill(~mask.unsqueeze(-1), content), mask))
            assert torch.equal(before[mask], after[mask])


@each_candidate
def test_more_padding_changes_nothing_beyond_rounding(candidate: Candidate) -> None:
    for causal in (False, True):
        layer = make(SequenceLayer, candidate, causal)
        x = seeded(SAMPLES, LENGTH, WIDTH)
        longer = torch.cat((x, seeded(SAMPLES, 20, WIDTH, seed=1)), dim=1)
        short, long = mask_of(9, 5, 1), mask_of(9, 5, 1, total=LENGTH + 20)
        before, after = layer((x, short))[0][short], layer((longer, long))[0][long]
        # Matrix products and convolutions of another length may sum in another order.
        torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)


@each_candidate
def test_every_layer_of_encoder_and_decoder_honours_both_masks(candidate: Candidate) -> None:
    source, target = seeded(SAMPLES, LENGTH, WIDTH), seeded(SAMPLES, 6, WIDTH, seed=1)
    source_mask, target_mask = mask_of(9, 5, 1), mask_of(2, 6, 1, total=6)
    other = (source.masked_fill(~source_mask.unsqueeze(-1), float("nan")), source_mask,
             target.masked_fill(~target_mask.unsqueeze(-1), float("nan")), target_mask)  # fmt: skip
    payload = (source, source_mask, target, target_mask)
    for layer in (make(EncoderLayer, candidate, False), make(DecoderLayer, candidate, True, 4)):
        before, after = layer(payload), layer(other)
        assert torch.equal(before[0][source_mask], after[0][source_mask])
        assert torch.equal(before[2][target_mask], after[2][target_mask])
        assert before[1] is source_mask
        assert before[3] is target_mask
    changed = target.clone()
    changed[:, 3] += 1
    after = layer((source, source_mask, changed, target_mask))
    assert torch.equal(before[2][:, :3], after[2][:, :3])


@each_candidate
def test_a_layer_of_the_decoder_sees_the_source_and_one_of_the_encoder_no_target(candidate: Candidate) -> None:
    source, target, mask = seeded(1, 4, WIDTH), seeded(1, 4, WIDTH, seed=1), torch.ones(1, 4, dtype=torch.bool)
    encoder, decoder = make(EncoderLayer, candidate, False), make(DecoderLayer, candidate, True, 4)
    assert torch.equal(encoder((source, mask, target, mask))[0], encoder((source, mask, target + 1, mask))[0])
    for place in range(4):
        changed = source.clone()
        changed[:, place] *= 2
        changed[:, place, 0] += 1
        assert not torch.equal(decoder((source, mask, target, mask))[2], decoder((changed, mask, target, mask))[2])


@each_candidate
def test_every_parameter_of_a_layer_gets_a_gradient_and_padding_gets_none(candidate: Candidate) -> None:
    layer = make(DecoderLayer, candidate, True, 4).train()
    source, target = seeded(SAMPLES, LENGTH, WIDTH).requires_grad_(), seeded(SAMPLES, 16, WIDTH).requires_grad_()
    source_mask, target_mask = mask_of(9, 5, 1), mask_of(16, 9, 3, total=16)
    out = layer((source, source_mask, target, target_mask))[2]
    out[target_mask].square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
    assert [path for path, p in layer.named_parameters() if not p.grad.any()] == []
    assert source.grad is not None
    assert not source.grad[~source_mask].any()
    assert target.grad is not None
    assert not target.grad[~target_mask].any()


@pytest.mark.parametrize("place", range(24))
def test_a_sequence_of_nothing_but_padding_gives_finite_numbers_and_gradients(place: int) -> None:
    layer = make(DecoderLayer, CANDIDATES[place], True, 4)
    x = seeded(2, 5, WIDTH).requires_grad_()
    mask = mask_of(0, 5, total=5)
    out = layer((x, mask, x, mask))[2]
    out.sum().backward()
    assert out.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    alone = layer((x[1:], mask[1:], x[1:], mask[1:]))[2]
    # Products of another number of samples may sum in another order.
    torch.testing.assert_close(out[1:], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_a_lightweight_convolution_is_the_papers(causal: bool) -> None:
    operator = LightweightConvolution(WIDTH, 2 * WIDTH, kernel=5, heads=4, causal=causal)
    x = seeded(2, 8, WIDTH)
    gated = F.glu(operator.expand(x), dim=-1)
    weights = operator.kernel.exp() / operator.kernel.exp().sum(dim=1, keepdim=True)
    expected = torch.zeros_like(gated)
    for place, channel, tap in itertools.product(range(8), range(2 * WIDTH), range(5)):
        source = place + tap - (4 if causal else 2)
        if 0 <= source < 8:
            expected[:, place, channel] += weights[channel * 4 // (2 * WIDTH), tap] * gated[:, source, channel]
    # The loop sums the taps in another order than the kernel.
    torch.testing.assert_close(operator(x, None), operator.project(expected), rtol=1e-5, atol=1e-5)


def test_a_separable_convolution_mixes_positions_within_channels_and_then_channels() -> None:
    operator = SeparableConvolution(WIDTH, 2 * WIDTH, kernel=3, causal=False)
    x = seeded(2, 8, WIDTH)
    around = F.pad(x, (0, 0, 1, 1)).unfold(1, 3, 1)
    mixed = (around * operator.depthwise.weight[:, 0]).sum(dim=-1) + operator.depthwise.bias
    expected = operator.project(operator.pointwise(mixed).relu())
    # The loop sums the taps in another order than the kernel.
    torch.testing.assert_close(operator(x, None), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("heads", [4, 8, 16])
def test_attention_is_torchs(heads: int) -> None:
    operator = SelfAttention(WIDTH, 2 * WIDTH, heads, causal=True)
    x, mask = seeded(SAMPLES, LENGTH, WIDTH), mask_of(9, 5, 1)
    parts = [y.unflatten(-1, (heads, -1)).transpose(1, 2) for y in operator.query_key_value(x).split(2 * WIDTH, dim=-1)]
    allowed = mask[:, None, None, :] & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    expected = operator.project(F.scaled_dot_product_attention(*parts, attn_mask=allowed).transpose(1, 2).flatten(2))
    # The fused kernel sums in blocks.
    torch.testing.assert_close(operator(x, mask), expected, rtol=1e-5, atol=1e-5)


def test_a_query_that_may_see_no_key_finds_zeros() -> None:
    q = seeded(1, 2, 4)
    allowed = torch.tensor([[True, False], [False, False]]).view(1, 1, 2, 2)
    found = attend(q, q, q, 2, allowed)
    assert torch.equal(found[0, 0], q[0, 0])
    assert not found[0, 1].any()


def test_a_layer_is_pre_norm_and_residual_and_drops_only_in_training() -> None:
    candidate = CANDIDATES[23]
    layer = Residual(candidate.operator(WIDTH, False), WIDTH, 0.5)
    x = seeded(2, 4, WIDTH)
    expected = x + layer.operator(F.layer_norm(x, (WIDTH,)), None)
    assert torch.equal(layer.eval()(x, None), expected)
    torch.manual_seed(0)
    ratio = (layer.train()(x, None) - x) / (expected - x)
    # Rounding of the residual sum is in both differences.
    assert torch.allclose(ratio.round(), ratio, atol=1e-2)
    assert set(ratio.round().int().unique().tolist()) == {0, 2}


@pytest.mark.parametrize(
    ("space", "parameters", "message"),
    [
        (TransformerLM, {"width": 40}, "width must be a multiple of 16, .* but is 40. Set it to 32 or 48"),
        (TransformerSeq2Seq, {"width": 8}, "width must be a multiple of 16, .* but is 8. Set it to 16"),
        (VisionTransformer, {"width": 20}, "width must be a multiple of 16, .* but is 20"),
        (TransformerSeq2Seq, {"cross_heads": 5}, "cross_heads must divide the width, but is 5, and the width is 64"),
        (TransformerLM, {"candidates": 25}, "candidates must be one of 24, 48, 72, 96, but is 25"),
        (TransformerSeq2Seq, {"preset": "nlp.c4"}, "preset must be one of small, nlp.c0, .*, but is 'nlp.c4'"),
        (VisionTransformer, {"patch_size": 3}, "patch_size must divide image_size, but is 3, .* one of 1, 2, 4, 8"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_at_construction(
    space: Callable[..., Any], parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpaceError, match=message):
        space(**parameters)
