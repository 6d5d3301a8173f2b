"""SpecCheck of payloads, compared: a block must return what its variant says, and what other processes expect."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from torch.utils import _pytree as pytree  # flattens any nest; torch offers no public one

from naspipe.errors import TrainingError
from naspipe.space import Architecture
from naspipe.supernet.block import Block
from naspipe.training.tensor_spec import MAX_KNOWN, BoundarySpecs, PayloadSpec, TensorSpec


class SpecCheck:
    """Judges what blocks return by what they returned before, and by what they return for zeros."""

    def __init__(self, blocks: Sequence[Block], signatures: BoundarySpecs | None) -> None:
        """Judge a supernet's blocks.

        Args:
            blocks: All of them.
            signatures: Runs them on zeros; without it nothing is wrong.
        """
        self._blocks = blocks
        self._signatures = signatures
        self._seen: dict[Hashable, tuple[Architecture, PayloadSpec]] = {}

    def check_variant(self, index: int, architecture: Architecture, taken: PayloadSpec, returned: PayloadSpec) -> None:
        """Compare what a block returned with what it returned for another architecture of the same variant.

        A form that depends on values is none of the variant's business, and is left to ``check_sent``.

        Args:
            index: The block.
            architecture: What it ran.
            taken: PayloadSpec of its input.
            returned: PayloadSpec of its output.

        Raises:
            TrainingError: The variant leaves out something of the architecture that decides the form.
        """
        key = (index, self._blocks[index].variant(architecture), taken.key)
        other, expected = self._seen.setdefault(key, (architecture, returned))
        if expected.key == returned.key or other == architecture:
            if len(self._seen) > MAX_KNOWN:
                del self._seen[next(iter(self._seen))]
            return
        apart = self._for_zeros(index, other, taken), self._for_zeros(index, architecture, taken)
        if None not in apart and len({signature.key for signature in apart if signature is not None}) == 2:
            raise TrainingError(self._variant(index, architecture, expected, returned))

    def check_sent(
        self,
        blocks: Sequence[int],
        architecture: Architecture,
        passed: Sequence[PayloadSpec],
        inputs: PayloadSpec,
    ) -> None:
        """Compare what the last of some blocks returned with what the process expects that it goes to.

        Args:
            blocks: The blocks that ran.
            architecture: What they ran.
            passed: BoundarySpecs of what the first one took and of what each returned.
            inputs: PayloadSpec of what the supernet's first block takes.

        Raises:
            TrainingError: It is something else; the first block that returned something unexpected is named.
        """
        assert self._signatures is not None, "a transport between processes needs the supernet on the meta device"
        if self._signatures.after(blocks[-1] + 1, architecture, inputs).key == passed[-1].key:
            return
        for index, taken, returned in zip(blocks, passed[:-1], passed[1:], strict=True):
            expected = self._signatures.after(index + 1, architecture, inputs)
            if expected.key == returned.key:
                continue
            own = self._for_zeros(index, architecture, taken)
            if own is not None and own.key == returned.key:
                raise TrainingError(self._variant(index, architecture, expected, returned))
            raise TrainingError(
                f"{self._name(index)} must return what it returns for zeros on the {self._signatures.device} device, "
                f"{describe(expected)}, since that is what other stages expect, but returned {describe(returned)}. "
                "Let the form of its output not depend on the values of its input, or set executor.transport to "
                "in-process."
            )

    def _for_zeros(self, index: int, architecture: Architecture, taken: PayloadSpec) -> PayloadSpec | None:
        """Return what a block returns for zeros, or None if it cannot be told."""
        if self._signatures is None:
            return None
        try:
            return self._signatures.run(index, architecture, taken)
        except TrainingError:
            return None

    def _variant(self, index: int, architecture: Architecture, expected: PayloadSpec, returned: PayloadSpec) -> str:
        return (
            f"{self._name(index)} must return the same form for all architectures of its variant "
            f"{self._blocks[index].variant(architecture)!r}, but returned {describe(expected)} for another one, and "
            f"{describe(returned)} now. Let variant() tell apart all that decides the form of the output."
        )

    def _name(self, index: int) -> str:
        return f"block {index} ({type(self._blocks[index]).__name__})"


class _Text(str):
    """A text that is its own representation."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def describe(signature: PayloadSpec) -> str:
    """Return a signature as a nest of types and shapes, as in ``{'x': float32 (8, 3)}``."""
    leaves = [_Text(_leaf(slot)) if isinstance(slot, TensorSpec) else slot for slot in signature.slots]
    return repr(pytree.tree_unflatten(leaves, signature.structure))


def _leaf(form: TensorSpec) -> str:
    text = f"{str(form.dtype).removeprefix('torch.')} {form.shape}"
    return text if form.requires_grad or not form.dtype.is_floating_point else f"{text} without gradient"
