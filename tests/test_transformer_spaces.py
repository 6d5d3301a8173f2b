"""The transformer spaces as wholes: extraction, masks from end to end, pipelines, sizes."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from naspipe import Block, SearchSpace, Splits, Supernet, Task, split_tensors
from naspipe.errors import SpaceError
from naspipe.supernet.flops import count_flops
from naspipe.supernet.meta import build_on_meta
from naspipe.tasks import Batch, TensorDataset
from naspipe.training.context import as_config
from naspipe.training.tensor_spec import BoundarySpecs, spec_of
from naspipe.verification.equality import verify
from naspipe_spaces.transformer.candidates import CANDIDATES
from naspipe_spaces.transformer.ends import sinusoids
from naspipe_spaces.transformer.lm import TransformerLM
from naspipe_spaces.transformer.seq2seq import PRESETS, TransformerSeq2Seq
from naspipe_spaces.transformer.vit import VisionTransformer

PAGE = Path(__file__).resolve().parent.parent / "docs" / "spaces-transformer.md"
WORDS = 11


def words(samples: int, length: int, seed: int = 0) -> Tensor:
    """Sentences of random lengths, filled with 0."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, WORDS, (samples, length), generator=generator)
    lengths = torch.randint(1, length + 1, (samples, 1), generator=generator)
    return ids.masked_fill(torch.arange(length) >= lengths, 0)


SPACES: dict[str, tuple[SearchSpace, Any]] = {
    "seq2seq": (
        TransformerSeq2Seq(WORDS, 9, encoder_blocks=2, decoder_blocks=2, width=16, candidates=48),
        (words(4, 7), words(4, 5, 1).clamp(max=8)),
    ),
    "lm": (TransformerLM(WORDS, blocks=3, width=16), words(4, 6)),
    "vit": (VisionTransformer(blocks=3, width=16, image_size=4, classes=3), torch.randn(4, 1, 4, 4)),
}
SUPERNETS = {name: Supernet(space, 0) for name, (space, _) in SPACES.items()}
each_space = pytest.mark.parametrize("name", SPACES)


def draw(name: str, seed: int) -> Any:
    return SPACES[name][0].random_architecture(random.Random(seed))


@each_space
def test_outputs_have_the_form_the_tasks_expect(name: str) -> None:
    space, inputs = SPACES[name]
    outputs = SUPERNETS[name](inputs, draw(name, 0))
    assert tuple(outputs.shape) == {"seq2seq": (4, 5, 9), "lm": (4, 6, WORDS), "vit": (4, 3)}[name]
    assert space.size == len(space.decisions[0].options) ** len(space.decisions)


@each_space
@pytest.mark.parametrize("seed", range(5))
def test_an_extracted_subnet_has_no_choices_and_the_same_bits_forward_and_backward(name: str, seed: int) -> None:
    _, inputs = SPACES[name]
    supernet, architecture = SUPERNETS[name], draw(name, seed)
    subnet = supernet.extract(architecture)
    assert not [module for module in subnet.modules() if isinstance(module, Block)]
    assert sum(p.numel() for p in subnet.parameters()) == supernet.num_parameters(architecture)
    outputs, gradients = [], []
    for run, module in ((lambda x: supernet(x, architecture), supernet), (subnet, subnet)):
        module.train().zero_grad()
        torch.manual_seed(0)  # Dropout draws from here.
        out = run(inputs)
        out.square().sum().backward()
        outputs.append(out)
        gradients.append([p.grad for p in module.parameters() if p.grad is not None])
    assert torch.equal(*outputs)
    assert len(gradients[0]) == len(gradients[1]) == len(list(subnet.parameters()))
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


@each_space
def test_only_the_ends_are_always_active_and_a_subnet_uses_one_layer_a_block(name: str) -> None:
    supernet, architecture = SUPERNETS[name], draw(name, 0)
    used = [[layer.name for layer in row] for row in supernet.used_layers(architecture)]
    assert used == [["always_active"], *[[option] for option in architecture.values()], ["always_active"]]


@each_space
def test_stages_know_what_they_will_receive(name: str) -> None:
    space, inputs = SPACES[name]
    architecture = draw(name, 0)
    signatures = BoundarySpecs(build_on_meta(space, 0))
    payload = inputs
    for index, block in enumerate(SUPERNETS[name]):
        payload = block(payload, architecture)
        assert signatures.after(index + 1, architecture, spec_of(inputs)).key == spec_of(payload).key


def test_the_flops_of_every_layer_can_be_counted() -> None:
    space = TransformerSeq2Seq(WORDS, encoder_blocks=1, decoder_blocks=1, width=16)
    source, target = (torch.zeros(2, 5, dtype=torch.long, device="meta") for _ in range(2))
    flops = count_flops(build_on_meta(space, 0), (source, target))
    for layers in flops.layers[1:-1]:
        assert set(layers) == set(space.decisions[0].options)
        assert all(layers.values())


def shifted(ids: Tensor, place: int) -> Tensor:
    """The same words but one, and the same padding."""
    changed = ids.clone()
    changed[:, place] = torch.where(ids[:, place] > 0, ids[:, place] % 8 + 1, 0)
    return changed


@pytest.mark.parametrize("seed", range(4))
def test_a_later_word_changes_no_earlier_logit(seed: int) -> None:
    _, (source, target) = SPACES["seq2seq"]
    for name, ids, inputs in (
        ("seq2seq", target, lambda ids: (source, ids)),
        ("lm", SPACES["lm"][1], lambda ids: ids),
    ):
        supernet, architecture = SUPERNETS[name].eval(), draw(name, seed)
        before = supernet(inputs(ids), architecture)
        for place in range(ids.shape[1]):
            after = supernet(inputs(shifted(ids, place)), architecture)
            assert torch.equal(before[:, :place], after[:, :place])
            assert not torch.equal(before[:, place:], after[:, place:])


@pytest.mark.parametrize("seed", range(4))
def test_longer_padding_changes_no_logit_beyond_rounding(seed: int) -> None:
    _, (source, target) = SPACES["seq2seq"]
    supernet, architecture = SUPERNETS["seq2seq"].eval(), draw("seq2seq", seed)
    before = supernet((source, target), architecture)
    after = supernet((F.pad(source, (0, 9)), F.pad(target, (0, 4))), architecture)[:, : target.shape[1]]
    # Matrix products and convolutions of another length may sum in another order.
    torch.testing.assert_close(after[target > 0], before[target > 0], rtol=1e-4, atol=1e-5)


def test_sinusoids_tell_positions_apart_and_padding_stays_zero() -> None:
    table = sinusoids(100, 16, torch.device("cpu"))
    assert table[0].tolist() == [0.0] * 8 + [1.0] * 8
    assert table[7, 0].item() == pytest.approx(0.6569866)  # sin 7
    assert len(table.unique(dim=0)) == 100
    supernet = Supernet(SPACES["lm"][0], 0)
    row = supernet.get_parameter("blocks.0.module.words.table.weight")
    supernet(SPACES["lm"][1], draw("lm", 0)).sum().backward()
    assert not row[0].any()
    assert row.grad is not None
    assert not row.grad[0].any()


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("lm", torch.ones(1, 257, dtype=torch.long), "at most max_length = 256 positions, but one has 257. Set space"),
        ("lm", torch.full((1, 2), 11), "at least 0 and below vocabulary = 11, but are from 11 to 11. Set space.vocab"),
        ("seq2seq", (words(1, 2), torch.full((1, 2), 9)), "Set space.target_vocabulary to the number"),
        ("lm", torch.ones(1, 2), r"tensor of int64 .*, but are torch.float32 of shape \(1, 2\)"),
        ("lm", (words(1, 2), words(1, 2)), "tensor of int64 .*, but are tuple. Choose a task"),
        ("seq2seq", words(1, 2), r"a pair \(source, target\) of words, but are of type Tensor"),
        ("vit", torch.ones(1, 3, 4, 4), r"channels, height and width \(1, 4, 4\), but have \(3, 4, 4\)"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(name: str, inputs: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        SUPERNETS[name](inputs, draw(name, 0))


class Pairs(TensorDataset):
    """Source and target in one tensor."""

    def batch(self, indices: Any, key: int) -> Batch:
        batch = super().batch(indices, key)
        source, shifted_target = batch.inputs[:, :7], batch.inputs[:, 7:]
        return Batch((source, shifted_target), batch.targets)


class Translation(Task):
    """Random sentences; the next word of the target."""

    def load(self, seed: int) -> Splits:
        source, target = words(40, 7, seed), words(40, 6, seed + 1).clamp(max=8)
        both = torch.cat((source, target[:, :-1]), dim=1)
        splits = split_tensors(both, target[:, 1:], seed, validation=0.1, test=0.1)
        return Splits(*(Pairs(s.inputs, s.targets) for s in (splits.train, splits.validation, splits.test)))

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=0)

    def weight(self, targets: Any) -> float:
        return max(float((targets > 0).sum()), 1.0)

    def measure(self, outputs: Any, targets: Any) -> Mapping[str, float]:
        return {}

    def metrics(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        return {"loss": totals["loss"] / totals["weight"]}

    @property
    def directions(self) -> Mapping[str, Any]:
        return {"loss": "minimize"}


class NextWord(Translation):
    """The next word of one sentence."""

    def load(self, seed: int) -> Splits:
        ids = words(40, 8, seed)
        return split_tensors(ids[:, :-1], ids[:, 1:], seed, validation=0.1, test=0.1)


SMALL = {"width": 16, "candidates": 24}
RUNS: dict[str, dict[str, Any]] = {
    "seq2seq": {
        "space": {"name": "transformer_seq2seq", "vocabulary": 11, "target_vocabulary": 9, "encoder_blocks": 2,
                  "decoder_blocks": 1, **SMALL},
        "task": {"name": "test_transformer_spaces:Translation"},
    },
    "lm": {
        "space": {"name": "transformer_lm", "vocabulary": 11, "blocks": 2, **SMALL},
        "task": {"name": "test_transformer_spaces:NextWord"},
    },
    "vit": {
        "space": {"name": "vit", "image_size": 4, "blocks": 2, "classes": 3, **SMALL},
        "task": {"name": "conftest:TinyTask"},
    },
}  # fmt: skip


@pytest.mark.parametrize(("name", "precision"), [("seq2seq", "fp32"), ("lm", "fp32"), ("vit", "fp32"), ("lm", "bf16")])
def test_training_on_three_stages_gives_the_bits_of_one(name: str, precision: str) -> None:
    training = {"subnets": 10, "batch_size": 8, "microbatches": 2, "delay": 2, "precision": precision,
                "optimizer": {"name": "AdamW", "lr": 0.01}}  # fmt: skip
    config = as_config({**RUNS[name], "training": training, "search": {"objectives": ["loss"]}})
    one, three = verify(config, ["csp"], [3], ["in-process"])
    assert (one.executor, one.stages, one.kept) == ("sequential", 1, True)
    assert (three.executor, three.stages) == ("csp", 3)
    assert three.reference
    assert three.kept, three.difference
    assert three.outcome.losses == one.outcome.losses
    assert len(set(one.outcome.losses)) == 10
    assert three.outcome.digests == one.outcome.digests


def figures(space: Any, label: str) -> str:
    """A row of the page's table: architectures, parameters, always-active share of supernet and mean subnet."""
    options = len(space.decisions[0].options)
    small = dict.fromkeys(("encoder_blocks", "decoder_blocks"), 1)
    if isinstance(space, TransformerSeq2Seq):
        one = TransformerSeq2Seq(
            space.vocabulary, space.target_vocabulary, width=space.width, candidates=len(space.candidates), **small
        )
        repeats = [1, space.encoder_blocks, space.decoder_blocks, 1]
    else:
        one, repeats = space, [1] * (len(space.decisions) + 2)
    supernet = build_on_meta(one, 0)
    total = always = 0
    mean = 0.0
    for times, layers in zip(repeats, supernet.layers_by_block, strict=True):
        strict = [layer.num_parameters for layer in layers.values() if layer.strict]
        fixed = [layer.num_parameters for layer in layers.values() if not layer.strict]
        total += times * sum(strict + fixed)
        always += times * sum(fixed)
        mean += times * (sum(strict) / options + sum(fixed))
    return (
        f"| {label} | {options}^{len(space.decisions)} | {total:,} | {mean:,.0f} | {always:,} | "
        f"{always / total:.2%} | {always / mean:.1%} |"
    )


def test_the_page_states_the_sizes_of_every_space() -> None:
    page = PAGE.read_text()
    rows = [
        figures(TransformerLM(), "`transformer_lm`"),
        figures(VisionTransformer(), "`vit`"),
        figures(TransformerSeq2Seq(), "`transformer_seq2seq`"),
        *(figures(TransformerSeq2Seq(32_000, preset=name), f"`{name}`") for name in PRESETS if name != "small"),
    ]
    missing = [row for row in rows if row not in page]
    assert not missing, "\n".join(["the page must hold these rows:", *rows])


def test_the_page_lists_every_operator() -> None:
    page = PAGE.read_text()
    assert [c.name for c in CANDIDATES[:24] if f"`{c.name}`" not in page] == []


def test_a_preset_is_built_without_memory_and_has_the_sizes_it_says() -> None:
    space = TransformerSeq2Seq(32_000, preset="nlp.c3")
    supernet = build_on_meta(space, 0)
    assert len(supernet) == 1 + 24 + 24 + 1
    assert all(parameter.is_meta for parameter in supernet.parameters())
    assert f"| {supernet.num_parameters():,} |" in figures(space, "nlp.c3")
    shapes = {name: (s.encoder_blocks, s.decoder_blocks, s.candidates, s.width) for name, s in PRESETS.items()}
    assert [shapes[f"nlp.c{index}"] for index in range(4)] == [(24, 24, n, 1024) for n in (96, 72, 48, 24)]
    assert TransformerSeq2Seq(preset="nlp.c0").size == 96**48


def test_a_size_given_beside_a_preset_counts() -> None:
    space = TransformerSeq2Seq(preset="nlp.c1", encoder_blocks=3, width=32)
    assert (len(space.decisions), space.width, len(space.candidates)) == (3 + 24, 32, 72)


def test_the_drawing_has_encoder_and_decoder_side_by_side() -> None:
    space, _ = SPACES["seq2seq"]
    architecture = draw("seq2seq", 0)
    graph = space.graph(architecture)
    assert [label for _, _, label in graph.edges] == [*architecture.values(), ""]
    assert [label for _, label, _, _ in graph.nodes] == ["in", "1", "out"] * 2
    assert graph.edges[-1][:2] == ("encoder.2", "decoder.0")
    # A report shows what lies between the nodes.
    rows = [row for _, _, _, row in graph.nodes]
    assert all(min(rows) <= row <= max(rows) for _, _, row in graph.titles)
