"""The blocks that train in this process: their layers and parts, and the payload specs at block boundaries."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

from naspipe.config.schema import TrainingConfig
from naspipe.pipeline.partition import Cuts
from naspipe.supernet.determinism import autocast
from naspipe.supernet.supernet import Supernet
from naspipe.training.layers import Layer
from naspipe.training.part import Part
from naspipe.training.schedule import OptimizerFactory
from naspipe.training.spec_check import SpecCheck
from naspipe.training.tensor_spec import BoundarySpecs


class StageModel:
    """A supernet as it trains: all of its stages, or one of them.

    Attributes:
        supernet: The supernet; the blocks of this process are trained in place.
        layers: For every block its layers by name.
        parts: The parts that are in this process, by number.
        num_parts: Number of parts of the whole pipeline.
        optimizers: Makes the optimizers of the layers.
        specs: The payload specs at block boundaries; None if no other process needs them.
        check: Checks the tensor specs of what the blocks return.
    """

    def __init__(
        self,
        supernet: Supernet,
        cuts: Cuts,
        config: TrainingConfig,
        seed: int,
        *,
        own_parts: range | None = None,
        meta: Supernet | None = None,
        recompute: bool = False,
    ) -> None:
        """Take charge of a supernet's blocks.

        Args:
            supernet: Trained in place, on ``config.device``.
            cuts: The partition into parts, the same for all subnets.
            config: The training's settings.
            seed: The run's seed.
            own_parts: The parts that are in this process, or None: all.
            meta: The supernet on the meta device; needed where other processes train other parts.
            recompute: Use activation checkpointing: keep only the input of each block.
        """
        self.supernet = supernet.train()
        for block in supernet:
            # Blocks of other processes may have no memory.
            if not any(parameter.is_meta for parameter in block.parameters()):
                block.to(config.device)
        self.optimizers = OptimizerFactory(config.optimizer)
        self.layers = [
            {
                spec.name: Layer(
                    spec,
                    self.optimizers,
                    delay=None if spec.strict else config.delay,
                    clip_norm=config.clip_norm,
                )
                for spec in specs.values()
            }
            for specs in supernet.layers_by_block
        ]
        surround = partial(autocast, config.precision, config.device)
        # The meta device has no autocast; then the specs come from running the real blocks.
        known = meta if config.precision == "fp32" else supernet
        self.specs = BoundarySpecs(known, config.device, surround) if known is not None else None
        blocks = list(supernet)
        self.check = SpecCheck(blocks, self.specs)
        self.num_parts = len(cuts) - 1
        self.parts = {
            number: Part(blocks[start:end], self.layers[start:end], start, seed, recompute, surround, self.check)
            for number, (start, end) in enumerate(itertools.pairwise(cuts))
            if own_parts is None or number in own_parts
        }
        self._cuts = cuts

    def own_layers(self) -> Iterator[Layer]:
        """Yield the layers of the parts that are in this process."""
        for number in self.parts:
            for block in self.layers[self._cuts[number] : self._cuts[number + 1]]:
                yield from block.values()
