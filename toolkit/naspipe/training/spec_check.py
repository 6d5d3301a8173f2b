"""The check of tensor specs: a block must return those of its variant, and those that other processes expect."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from torch.utils import _pytree as pytree  # flattens any nest; torch offers no public one

from naspipe.errors import TrainingError
from naspipe.space import Architecture
from naspipe.supernet.block import Block
from naspipe.training.tensor_spec import MAX_KNOWN, BoundarySpecs, PayloadSpec, TensorSpec


class SpecCheck:
    """Compares the tensor specs that blocks return with those that they returned before, and with those for zeros."""

    def __init__(self, blocks: Sequence[Block], specs: BoundarySpecs | None) -> None:
        """Check a supernet's blocks.

        Args:
            blocks: All blocks of the supernet.
            specs: Runs the blocks on zeros. None: a difference cannot be traced to its cause, and is no error.
        """
        self._blocks = blocks
        self._specs = specs
        self._seen: dict[Hashable, tuple[Architecture, PayloadSpec]] = {}

    def check_variant(self, index: int, architecture: Architecture, taken: PayloadSpec, returned: PayloadSpec) -> None:
        """Compare what a block returned with what it returned for another architecture of the same variant.

        A tensor spec may also depend on values. That is not the variant's fault, and ``check_sent`` reports it.

        Args:
            index: Index of the block.
            architecture: The architecture that it ran.
            taken: Payload spec of its input.
            returned: Payload spec of its output.

        Raises:
            TrainingError: The variant is the same for architectures whose outputs differ in their tensor specs.
        """
        key = (index, self._blocks[index].variant(architecture), taken.key)
        other, expected = self._seen.setdefault(key, (architecture, returned))
        if expected.key == returned.key or other == architecture:
            if len(self._seen) > MAX_KNOWN:
                del self._seen[next(iter(self._seen))]
            return
        apart = self._for_zeros(index, other, taken), self._for_zeros(index, architecture, taken)
        if None not in apart and len({spec.key for spec in apart if spec is not None}) == 2:
            raise TrainingError(self._variant(index, architecture, expected, returned))

    def check_sent(
        self,
        blocks: Sequence[int],
        architecture: Architecture,
        passed: Sequence[PayloadSpec],
        inputs: PayloadSpec,
    ) -> None:
        """Check that the receiving process expects the tensor spec of what the last of some blocks returned.

        Args:
            blocks: Indices of the blocks that ran.
            architecture: The architecture that they ran.
            passed: Payload specs: the input of the first of these blocks, then the output of each.
            inputs: Payload spec of the input of the supernet's first block.

        Raises:
            TrainingError: It expects another one. The message names the first block whose output differs.
        """
        assert self._specs is not None, "a transport between processes needs the supernet on the meta device"
        if self._specs.after(blocks[-1] + 1, architecture, inputs).key == passed[-1].key:
            return
        for index, taken, returned in zip(blocks, passed[:-1], passed[1:], strict=True):
            expected = self._specs.after(index + 1, architecture, inputs)
            if expected.key == returned.key:
                continue
            own = self._for_zeros(index, architecture, taken)
            if own is not None and own.key == returned.key:
                raise TrainingError(self._variant(index, architecture, expected, returned))
            raise TrainingError(
                f"{self._name(index)} must return what it returns for zeros on the {self._specs.device} device, "
                f"{describe(expected)}, since that is what other stages expect, but returned {describe(returned)}. "
                "The tensor spec of its output must not depend on the values of its input: change the block, or set "
                "executor.transport to in-process."
            )

    def _for_zeros(self, index: int, architecture: Architecture, taken: PayloadSpec) -> PayloadSpec | None:
        """Return the payload spec of a block's output for zeros, or None if it is not known."""
        if self._specs is None:
            return None
        try:
            return self._specs.run(index, architecture, taken)
        except TrainingError:
            return None

    def _variant(self, index: int, architecture: Architecture, expected: PayloadSpec, returned: PayloadSpec) -> str:
        return (
            f"{self._name(index)} must return the same tensor spec for all architectures of its variant "
            f"{self._blocks[index].variant(architecture)!r}, but returned {describe(expected)} for another one, and "
            f"{describe(returned)} now. variant() must return different values for them."
        )

    def _name(self, index: int) -> str:
        return f"block {index} ({type(self._blocks[index]).__name__})"


class _Text(str):
    """A text that is its own representation."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def describe(spec: PayloadSpec) -> str:
    """Return a payload spec as a nest of types and shapes, as in ``{'x': float32 (8, 3)}``."""
    leaves = [_Text(_leaf(slot)) if isinstance(slot, TensorSpec) else slot for slot in spec.slots]
    return repr(pytree.tree_unflatten(leaves, spec.structure))


def _leaf(spec: TensorSpec) -> str:
    text = f"{str(spec.dtype).removeprefix('torch.')} {spec.shape}"
    return text if spec.requires_grad or not spec.dtype.is_floating_point else f"{text} without gradient"
