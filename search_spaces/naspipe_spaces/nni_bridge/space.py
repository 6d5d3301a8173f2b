"""The space ``nni``: a ``ModelSpace`` of NNI, divided into a chain of blocks.

Source: NNI 3.0 (Microsoft, 2023), https://github.com/microsoft/nni; its one-shot supernets compute the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field
from torch import nn

from naspipe.config.parameters import Reference
from naspipe.errors import ArchitectureError, NaspipeWarning, PluginError
from naspipe.registry import importing, load_reference
from naspipe.space import Architecture, Option, SearchSpace
from naspipe.wording import listing
from naspipe_spaces.nni_bridge.analysis import Source, analyse
from naspipe_spaces.nni_bridge.block import NNIBlock
from naspipe_spaces.nni_bridge.decisions import from_nni, to_nni
from naspipe_spaces.nni_bridge.library import load_nni


class NNISpace(SearchSpace):
    """A model space of NNI: a decision for each of its labels, a strict layer for each candidate."""

    def __init__(
        self,
        model: Reference,
        arguments: dict[str, Any] | None = None,
        values: Annotated[int, Field(ge=1)] | None = None,
    ) -> None:
        """Build and analyse the model space.

        Args:
            model: The subclass of ``ModelSpace``: ``package.module:Class`` or ``file.py:Class``.
            arguments: The arguments of its constructor.
            values: Number of values that may pass between two blocks, at most; by default the smallest number with
                which the model can be divided. With more, cells are divided too.

        Raises:
            PluginError: NNI is missing, or the class cannot be imported or is not a ``ModelSpace``.
            SpaceError: The model cannot be built, or has a choice that cannot be converted.
        """
        self._nni = load_nni()
        with importing(f"model {model!r}"):
            loaded = load_reference(model, self._nni.nn.ModelSpace)
        if not (isinstance(loaded, type) and issubclass(loaded, self._nni.nn.ModelSpace)):
            raise PluginError(f"model {model!r} must be a subclass of NNI's ModelSpace, but is {loaded!r}.")
        self._source = Source(self._nni, loaded, arguments or {}, values)
        self._analysis = analyse(self._source)
        for message in self._analysis.warnings:
            warnings.warn(message, NaspipeWarning, stacklevel=2)
        super().__init__(self._analysis.decisions)

    def blocks(self) -> Iterator[nn.Module]:
        """Yield the blocks; all weights are drawn before the first block, when the model is built."""
        for module in self._source.divide(self._source.convert(self._source.build())):
            yield NNIBlock(module)

    @property
    def has_rule(self) -> bool:
        """Whether the model space has constraints."""
        return bool(self._analysis.constraints)

    def is_valid(self, architecture: Architecture) -> bool:
        """Tell whether an architecture satisfies NNI's constraints."""
        sample = self.to_sample(architecture)
        return all(constraint.contains(sample) for constraint in self._analysis.constraints)

    def to_sample(self, architecture: Mapping[str, Option]) -> dict[str, Any]:
        """Return an architecture as a sample of NNI, for ``freeze`` and other methods.

        Labels whose decision does not exist in the architecture get their first option, which has no effect.
        """
        return {
            label: to_nni(self._nni, mutable, architecture.get(label, self.decision(label).options[0]))
            for label, mutable in self._analysis.mutables.items()
        }

    def from_sample(self, sample: Mapping[str, Any]) -> Architecture:
        """Return a sample of NNI as an architecture.

        Raises:
            ArchitectureError: A label is missing or unknown, or a value is not an option.
        """
        unknown = [label for label in sample if label not in self._analysis.mutables]
        if unknown:
            raise ArchitectureError(
                f"a sample of {self._source.cls.__name__} must have only its labels, but has {listing(unknown)}. "
                f"The labels are {listing(self._analysis.mutables)}."
            )
        choices: dict[str, Option] = {}
        for decision in self.decisions:
            exists = decision.parent is None or (
                decision.parent in choices and choices[decision.parent] in decision.parent_options
            )
            if exists and decision.name in sample:
                mutable = self._analysis.mutables[decision.name]
                choices[decision.name] = from_nni(self._nni, mutable, sample[decision.name])
        return self.architecture(choices)
