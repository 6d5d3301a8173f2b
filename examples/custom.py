"""Your own search space, task and strategy: naspipe run examples/custom.yaml."""

import random

import torch
from sklearn.datasets import load_wine
from torch import nn

from naspipe import ChoiceBlock, ClassificationTask, Decision, SearchSpace, Strategy, split_tensors


class WineSpace(SearchSpace):
    """A chain of fully connected layers, each with a choice of its width and activation.

    Args:
        depth: Number of layers.
    """

    def __init__(self, depth: int = 3):
        options = [(width, name) for width in (8, 16, 32) for name in ("ReLU", "Tanh")]
        super().__init__(Decision(f"layer{i}", options) for i in range(depth))

    def blocks(self):
        yield nn.Linear(13, 32)
        for decision in self.decisions:
            yield ChoiceBlock(decision, {o: self.layer(*o) for o in decision.options})
        yield nn.Linear(32, 3)

    def layer(self, width, activation):
        return nn.Sequential(nn.Linear(32, width), getattr(nn, activation)(), nn.Linear(width, 32))


class Wine(ClassificationTask):
    """178 Italian wines, 13 chemical properties, 3 cultivars."""

    def load(self, seed):
        inputs, targets = load_wine(return_X_y=True)
        x = torch.tensor((inputs - inputs.mean(0)) / inputs.std(0), dtype=torch.float32)
        return split_tensors(x, torch.tensor(targets), seed, validation=0.2, test=0.2)


class HillClimbing(Strategy):
    """Changes one decision of the best architecture so far."""

    def start(self, space, directions, seed):
        self.space, self.sign = space, 1 if directions[0] == "maximize" else -1
        self.random, self.best = random.Random(seed), (float("-inf"), None)

    def ask(self):
        proposal = self.space.random_architecture(self.random)
        if self.best[1] is None:
            return [proposal]
        name = self.random.choice(list(proposal))
        return [self.space.architecture({**self.best[1], name: proposal[name]})]

    def tell(self, outcomes):
        for outcome in outcomes:
            if outcome.values and self.sign * outcome.values[0] > self.best[0]:
                self.best = self.sign * outcome.values[0], outcome.architecture
