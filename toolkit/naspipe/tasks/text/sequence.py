"""Sequences of tokens: cross-entropy, perplexity and accuracy over all tokens except padding.

Shapes: N samples, T tokens, V ids.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from naspipe.errors import TaskError
from naspipe.tasks.task import Direction, Task

PAD, BEGIN, END, UNKNOWN = range(4)
"""The special ids: padding, begin and end of a sequence, and a token that is not in the vocabulary."""

NUM_SPECIAL = 4
"""The number of special ids, and so the first id of an ordinary token."""


class SequenceTask(Task):
    """A task whose outputs are logits (N, T, V) and whose targets are ids (N, T), padded with 0.

    A subclass implements ``load``.
    """

    def __init__(self, vocabulary: int, label_smoothing: float = 0.0) -> None:
        """Choose the loss.

        Args:
            vocabulary: Number of ids; the outputs have at least as many logits.
            label_smoothing: Probability in [0, 1) that the loss distributes over all ids (Szegedy et al., "Rethinking
                the Inception Architecture", 2016).
        """
        self.vocabulary = vocabulary
        self.label_smoothing = label_smoothing

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """Return the summed cross-entropy of the tokens, in nats, with label smoothing."""
        logits, tokens = self._flatten(outputs, targets)
        return F.cross_entropy(logits, tokens, ignore_index=PAD, reduction="sum", label_smoothing=self.label_smoothing)

    def weight(self, targets: Any) -> float:
        """Return the number of tokens that are not padding."""
        return float((targets != PAD).sum().item())

    def measure(self, outputs: Any, targets: Any) -> Mapping[str, float]:
        """Return the summed plain cross-entropy, and the number of tokens whose most likely prediction is correct."""
        logits, tokens = self._flatten(outputs, targets)
        right = (logits.argmax(dim=-1) == tokens) & (tokens != PAD)
        return {
            "entropy": float(F.cross_entropy(logits, tokens, ignore_index=PAD, reduction="sum").item()),
            "correct": float(right.sum().item()),
        }

    def metrics(self, totals: Mapping[str, float]) -> Mapping[str, float]:
        """Return accuracy of tokens, in [0, 1], mean loss, in nats, and perplexity of the plain cross-entropy."""
        entropy = totals["entropy"] / totals["weight"]
        return {
            "accuracy": totals["correct"] / totals["weight"],
            "loss": totals["loss"] / totals["weight"],
            # Above about 700 the exponential overflows.
            "perplexity": math.exp(entropy) if entropy < 700 else math.inf,
        }

    @property
    def directions(self) -> Mapping[str, Direction]:
        """Accuracy is better when larger, loss and perplexity when smaller."""
        return {"accuracy": "maximize", "loss": "minimize", "perplexity": "minimize"}

    def _flatten(self, outputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
        """Return logits (N T, V) and tokens (N T,)."""
        shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        tokens = tuple(targets.shape)
        if not isinstance(shape, tuple) or shape[:-1] != tokens or shape[-1] < self.vocabulary:
            raise TaskError(
                f"outputs must be logits of shape (samples, tokens, ids), for targets of shape {tokens} and at least "
                f"{self.vocabulary} ids, but are {shape}. Give the space and the task the same vocabulary."
            )
        return outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1)
