"""A small space for tokens, and a configuration for tasks of 60 ids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from naspipe import ChoiceBlock, Decision, SearchSpace


class Embed(nn.Module):
    """Embeds tokens; of a pair, the target so far and the mean of the source."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)

    def forward(self, x: Any) -> Tensor:
        if isinstance(x, tuple):
            source, so_far = x
            return self.table(so_far) + self.table(source).mean(1, keepdim=True)
        return self.table(x)


class TokenSpace(SearchSpace):
    """Each token is predicted from the one before it, and of a pair from the source's words."""

    def __init__(self, vocabulary: int, width: int = 16) -> None:
        self.vocabulary, self.width = vocabulary, width
        super().__init__(Decision(f"op{i}", ("linear", "relu", "tanh", "skip")) for i in range(2))

    def candidate(self, option: str) -> nn.Module:
        if option == "skip":
            return nn.Identity()
        activation = {"linear": nn.Identity, "relu": nn.ReLU, "tanh": nn.Tanh}[option]
        return nn.Sequential(nn.Linear(self.width, self.width), activation(), nn.Dropout(0.1))

    def blocks(self) -> Iterator[nn.Module]:
        yield Embed(self.vocabulary, self.width)
        for decision in self.decisions:
            yield ChoiceBlock(decision, {o: self.candidate(o) for o in decision.options})
        yield nn.Linear(self.width, self.vocabulary)


CONFIG: dict[str, Any] = {
    "seed": 3,
    "space": {"name": "text_spaces:TokenSpace", "vocabulary": 60},
    "training": {
        "subnets": 40, "batch_size": 12, "microbatches": 2, "delay": 2, "optimizer": {"name": "AdamW", "lr": 0.01},
    },
    "sampler": {"name": "spaced", "distance": 2},
    "search": {
        "strategy": {"name": "evolution", "population": 4}, "budget": {"trials": 8}, "batch_size": 16,
        "objectives": ["bleu", "perplexity"],
    },
    "retrain": {"epochs": 2, "batch_size": 16, "optimizer": {"name": "AdamW", "lr": 0.01}},
}  # fmt: skip
