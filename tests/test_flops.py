"""FLOPs and parameters of layers add up to those of the extracted subnet, in every built-in space."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from naspipe import SearchSpace, keyed_random
from naspipe.supernet.flops import count_flops
from naspipe.supernet.meta import build_on_meta, to_meta
from naspipe_spaces.nasbench201 import NASBench201
from naspipe_spaces.nni_bridge.space import NNISpace
from naspipe_spaces.resnet import ResNet
from naspipe_spaces.transformer.lm import TransformerLM
from naspipe_spaces.transformer.seq2seq import TransformerSeq2Seq
from naspipe_spaces.transformer.vit import VisionTransformer

IMAGES = torch.zeros(2, 1, 8, 8)
WORDS = torch.ones(2, 5, dtype=torch.int64)
NNI_MODEL = f"{Path(__file__).resolve().parent.parent}/examples/nni_space.py:SmallSpace"
SPACES: dict[str, Any] = {
    "nasbench201": (lambda: NASBench201(channels=4, tied=False), IMAGES),
    "resnet": (lambda: ResNet(blocks=3, width=4), IMAGES),
    "vit": (lambda: VisionTransformer(blocks=2, width=16), IMAGES),
    "transformer_lm": (lambda: TransformerLM(blocks=2, width=16, vocabulary=20), WORDS),
    "transformer_seq2seq": (
        lambda: TransformerSeq2Seq(width=16, encoder_blocks=1, decoder_blocks=1, vocabulary=20),
        (WORDS, WORDS),
    ),
    "nni": (lambda: NNISpace(NNI_MODEL, arguments={"width": 4}), IMAGES),
}


@pytest.mark.parametrize("name", SPACES)
def test_flops_and_parameters_are_those_of_the_extracted_subnet(name: str) -> None:
    make, inputs = SPACES[name]
    space: SearchSpace = make()
    supernet = build_on_meta(space, 0)
    inputs = to_meta(inputs)
    found = count_flops(supernet, inputs)
    for draw in range(5):
        architecture = space.random_architecture(keyed_random(0, "test", draw))
        total = sum(base for base, _ in found.costs())
        for index, row in enumerate(supernet.used_layers(architecture)):
            total += sum(found.layers[index][layer.name] for layer in row if layer.strict)
        subnet = supernet.extract(architecture)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            subnet(inputs)
        assert total == counter.get_total_flops() > 0
        assert supernet.num_parameters(architecture) == sum(p.numel() for p in subnet.parameters())
