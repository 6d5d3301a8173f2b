"""Plug-ins with one fault each, for the tests of the conformance kit."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from naspipe import (
    Architecture,
    Batch,
    Block,
    ChoiceBlock,
    ClassificationTask,
    Decision,
    Sampler,
    SearchSpace,
    Splits,
    Strategy,
    TensorDataset,
    keyed_random,
    split_tensors,
)
from naspipe.errors import ArchitectureError
from naspipe.executors.csp import CSP
from naspipe.space import ArchitectureGraph

WIDTH = 6


class Sound(SearchSpace):
    """Two choices of linear layers; without a fault."""

    block: type[ChoiceBlock] = ChoiceBlock

    def __init__(self) -> None:
        super().__init__(Decision(f"layer{i}", self.options()) for i in range(2))

    def options(self) -> Sequence[str]:
        return ("a", "b", "c")

    def candidate(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def blocks(self) -> Iterator[nn.Module]:
        yield nn.Linear(WIDTH, WIDTH)
        for decision in self.decisions:
            yield self.block(decision, {option: self.candidate() for option in decision.options})
        yield self.head()

    def head(self) -> nn.Module:
        return nn.Linear(WIDTH, 1)


class Whimsical(Sound):
    """Its rule throws dice."""

    def is_valid(self, architecture: Architecture) -> bool:
        return random.random() >= 0


class NoJson(Sound):
    """Reads only its own texts."""

    def format(self, architecture: Architecture) -> str:
        return "".join(map(str, architecture.options))

    def parse(self, text: str) -> Architecture:
        if len(text) != len(self.decisions):
            raise ArchitectureError(f"{text!r} is no text of this space.")
        return self.architecture({decision.name: c for decision, c in zip(self.decisions, text, strict=True)})


class Taciturn(Sound):
    """Leaves a decision out of its texts."""

    def format(self, architecture: Architecture) -> str:
        return str(architecture["layer0"])


class Unreadable(NoJson):
    """Reads JSON, but nothing that it has written."""

    parse = SearchSpace.parse


class Dangling(Sound):
    """Draws an edge to nowhere."""

    def graph(self, architecture: Architecture) -> ArchitectureGraph:
        return ArchitectureGraph((("in", "in", 0.0, 0.0),), (("in", "nowhere", ""),))


class Misfit(Sound):
    """A head for other features."""

    def head(self) -> nn.Module:
        return nn.Linear(WIDTH + 1, 1)


class Endless(Sound):
    """Divides by nothing."""

    def head(self) -> nn.Module:
        return _Infinite()


class _Infinite(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 0


class _Undeclared(ChoiceBlock):
    def forward(self, x: Any, architecture: Architecture) -> Any:
        return super().forward(x, architecture) + self.candidates["a"](x)


class Undeclared(Sound):
    """Uses a layer that it does not name."""

    block = _Undeclared


class _Boastful(ChoiceBlock):
    def used_layers(self, architecture: Architecture) -> Sequence[str]:
        return list(self.layers())


class Boastful(Sound):
    """Names layers that it does not use."""

    block = _Boastful


class _Idle(nn.Linear):
    def __init__(self) -> None:
        super().__init__(WIDTH, 1)
        self.forgotten = nn.Parameter(torch.zeros(3))


class Idle(Sound):
    """Has a parameter that nothing uses."""

    def head(self) -> nn.Module:
        return _Idle()


class _Peeking(ChoiceBlock):
    def forward(self, x: Any, architecture: Architecture) -> Any:
        other: Any = self.candidates["a"]
        return super().forward(x, architecture) + other[0].weight.detach().mean()


class Peeking(Sound):
    """Reads the weights of a layer that it does not name."""

    block = _Peeking


class _Counting(nn.Linear):
    def __init__(self) -> None:
        super().__init__(WIDTH, 1)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


class Counting(Sound):
    """Counts its calls."""

    def head(self) -> nn.Module:
        return _Counting()


class _Averaging(nn.Linear):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__(WIDTH, 1)
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.lerp_(x.detach().mean(dim=0), 0.1)
        return super().forward(x - self.mean)


class Averaging(Sound):
    """Keeps a running mean."""

    def head(self) -> nn.Module:
        return _Averaging()


class _Dicing(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + random.random())


class Dicing(Sound):
    """Draws from Python's global generator in its forward."""

    def head(self) -> nn.Module:
        return _Dicing(WIDTH, 1)


class _Ticking(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + time.perf_counter() % 1)


class Ticking(Sound):
    """Computes with the clock."""

    def head(self) -> nn.Module:
        return _Ticking(WIDTH, 1)


class _Bent(ChoiceBlock):
    def extract(self, architecture: Architecture) -> nn.Module:
        extracted: Any = super().extract(architecture)
        return nn.Sequential(extracted[0], nn.Sigmoid())


class Bent(Sound):
    """Extracts another activation."""

    block = _Bent


class _Hoarding(ChoiceBlock):
    def extract(self, architecture: Architecture) -> nn.Module:
        extracted: Any = super().extract(architecture)
        extracted.other = nn.Linear(2, 2)
        return extracted


class Hoarding(Sound):
    """Extracts a layer too many."""

    block = _Hoarding


class _Renormalised(Block):
    """Extracts a normalisation with the running statistics that the supernet has dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Any, architecture: Architecture) -> Any:
        return self.norm(x)

    def extract(self, architecture: Architecture) -> nn.Module:
        return nn.BatchNorm1d(WIDTH, track_running_stats=self.norm.track_running_stats)


class Renormalised(Sound):
    """Extracts what depends on where it is extracted from."""

    def blocks(self) -> Iterator[nn.Module]:
        blocks = list(super().blocks())
        yield from [*blocks[:-1], _Renormalised(), blocks[-1]]


class Unseeded(Sound):
    """Initialises from Python's global generator."""

    def head(self) -> nn.Module:
        head = nn.Linear(WIDTH, 1)
        nn.init.constant_(head.bias, random.random())
        return head


STASH: list[Tensor] = []


class _Put(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        STASH[:] = [y]
        return y


class _Take(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + STASH.pop())


class Smuggling(Sound):
    """Passes a tensor on outside the payload."""

    def blocks(self) -> Iterator[nn.Module]:
        yield _Put(WIDTH, WIDTH)
        yield from list(super().blocks())[1:-1]
        yield _Take(WIDTH, 1)


class _Uniform(ChoiceBlock):
    def variant(self, architecture: Architecture) -> None:
        return None


class Formless(Sound):
    """Says that outputs of different widths have one form."""

    def blocks(self) -> Iterator[nn.Module]:
        yield from list(super().blocks())[:-2]
        last = self.decisions[-1]
        yield _Uniform(last, {option: nn.Linear(WIDTH, 1 + i) for i, option in enumerate(last.options)})


class _Looking(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2.0 if x.sum().item() > 0 else 1.0)


class Looking(Sound):
    """Looks at the values of a tensor."""

    def head(self) -> nn.Module:
        return _Looking(WIDTH, 1)


class Hashed(Sound):
    """Its options stand in the order of a set."""

    def options(self) -> Sequence[str]:
        return list({"a", *(f"option{i}" for i in range(8))})


class _Aliased(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 1)
        self.alias = [self.linear.weight]

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.alias[0], self.linear.bias)


class Aliased(Sound):
    """Reads a parameter through a list, where no other version can be put."""

    def head(self) -> nn.Module:
        return _Aliased()


# Samplers


class Careless(Sampler):
    """Ignores the validity rule."""

    def start(self, space: SearchSpace, seed: int) -> None:
        self.space, self.seed = space, seed

    def draw(self, index: int) -> Architecture:
        uniform = keyed_random(self.seed, "careless", index)
        return self.space.from_indices([int(uniform.random() * len(d.options)) for d in self.space.decisions])


class SoundSampler(Sampler):
    """Draws by a number that subclasses choose."""

    def start(self, space: SearchSpace, seed: int) -> None:
        self.space, self.seed = space, seed

    def draw(self, index: int) -> Architecture:
        return self.space.random_architecture(keyed_random(self.seed, "sound", index, self.number(index)))

    def number(self, index: int) -> int:
        return 0


class Entropic(SoundSampler):
    """Seeds itself by chance."""

    def number(self, index: int) -> int:
        return random.SystemRandom().randrange(1000)


class Enduring(SoundSampler):
    """Begins no new sequence when it is started again."""

    count = 0

    def number(self, index: int) -> int:
        self.count += 1
        return self.count


class Gregarious(SoundSampler):
    """Shares its memory with all others."""

    drawn: ClassVar[list[int]] = []

    def start(self, space: SearchSpace, seed: int) -> None:
        super().start(space, seed)
        self.drawn.clear()

    def number(self, index: int) -> int:
        self.drawn.append(index)
        return len(self.drawn)

    def state(self) -> dict[str, Any]:
        return {"drawn": list(self.drawn)}

    def restore(self, state: dict[str, Any]) -> None:
        self.drawn[:] = state["drawn"]


class Global(SoundSampler):
    """Seeds the global generator."""

    def number(self, index: int) -> int:
        random.seed(index)
        return random.randrange(1000)


class Forgetful(SoundSampler):
    """Has a memory, but no state."""

    def start(self, space: SearchSpace, seed: int) -> None:
        super().start(space, seed)
        self.count = 0

    def number(self, index: int) -> int:
        self.count += 1
        return self.count


# Strategies


class SoundStrategy(Strategy):
    """Proposes by a number that subclasses choose."""

    size = 2

    def start(self, space: SearchSpace, directions: Sequence[str], seed: int) -> None:
        self.space, self.seed, self.asked = space, seed, 0

    @property
    def generation_size(self) -> int:
        return 2

    def ask(self) -> list[Architecture]:
        self.asked += 1
        key = (self.seed, "sound", self.asked, self.number())
        return [self.space.random_architecture(keyed_random(*key, place)) for place in range(self.size)]

    def number(self) -> int:
        return 0

    def tell(self, outcomes: Sequence[Any]) -> None:
        pass


class Stingy(SoundStrategy):
    """Proposes fewer than it says."""

    size = 1


class Lawless(SoundStrategy):
    """Ignores the validity rule."""

    def ask(self) -> list[Architecture]:
        return [self.space.from_indices([0] * (len(self.space.decisions) - 1) + [place]) for place in (0, 1)]


class Narrow(SoundStrategy):
    """Knows one objective only."""

    def start(self, space: SearchSpace, directions: Sequence[str], seed: int) -> None:
        (self.direction,) = directions
        super().start(space, directions, seed)


class Optimistic(SoundStrategy):
    """Does not expect failures."""

    def tell(self, outcomes: Sequence[Any]) -> None:
        self.best = max(outcome.values[0] for outcome in outcomes)


class EntropicStrategy(SoundStrategy):
    """Seeds itself by chance."""

    def number(self) -> int:
        return random.SystemRandom().randrange(1000)


class Stubborn(SoundStrategy):
    """Keeps the space and the seed of its first start."""

    def start(self, space: SearchSpace, directions: Sequence[str], seed: int) -> None:
        if not hasattr(self, "space"):
            super().start(space, directions, seed)


class GregariousStrategy(SoundStrategy):
    """Shares its memory with all others."""

    told: ClassVar[list[int]] = []

    def start(self, space: SearchSpace, directions: Sequence[str], seed: int) -> None:
        super().start(space, directions, seed)
        self.told.clear()

    def number(self) -> int:
        return len(self.told)

    def tell(self, outcomes: Sequence[Any]) -> None:
        self.told.append(len(outcomes))


class GlobalStrategy(SoundStrategy):
    """Seeds the global generator."""

    def number(self) -> int:
        random.seed(self.asked)
        return random.randrange(1000)


# Executors


class Waiting(CSP):
    """Waits whenever there is a choice."""

    def choose(self, ready: Any, view: Any) -> Any:
        return None if len(ready) > 1 else ready[0]


class Moody(CSP):
    """Takes the first and the last ready action in turn."""

    turn = False

    def choose(self, ready: Any, view: Any) -> Any:
        self.turn = not self.turn
        return ready[0] if self.turn else ready[-1]


class Ageing(CSP):
    """Chooses otherwise in every plan."""

    plans = 0

    def window(self, shape: Any) -> int:
        self.plans += 1
        return super().window(shape)

    def choose(self, ready: Any, view: Any) -> Any:
        return ready[-1] if self.plans // 7 % 2 else ready[0]


class Hasty(CSP):
    """Looks at the clock."""

    def choose(self, ready: Any, view: Any) -> Any:
        time.monotonic()
        return super().choose(ready, view)


# Tasks


class SoundTask(ClassificationTask):
    """Random samples of two classes; without a fault."""

    def load(self, seed: int) -> Splits:
        inputs = torch.randn(60, 3, generator=torch.Generator().manual_seed(seed))
        return split_tensors(inputs, (inputs.sum(dim=1) > 0).long(), seed, validation=0.2, test=0.2)


class _Short(TensorDataset):
    def batch(self, indices: Sequence[int], key: int) -> Batch:
        return super().batch(indices[:2], key)


class Short(SoundTask):
    """Returns fewer samples than it is asked for."""

    def load(self, seed: int) -> Splits:
        splits: Any = super().load(seed)
        return Splits(_Short(splits.train.inputs, splits.train.targets), splits.validation, splits.test)


class Shuffling(SoundTask):
    """Splits by torch's global generator."""

    def load(self, seed: int) -> Splits:
        splits: Any = super().load(seed)
        order = torch.randperm(len(splits.train))
        train = TensorDataset(splits.train.inputs[order], splits.train.targets[order])
        return Splits(train, splits.validation, splits.test)


class _Noisy(TensorDataset):
    def batch(self, indices: Sequence[int], key: int) -> Batch:
        batch = super().batch(indices, key)
        return Batch(batch.inputs + torch.randn(batch.inputs.shape), batch.targets)


class NoisyTask(SoundTask):
    """Augments by torch's global generator."""

    def load(self, seed: int) -> Splits:
        splits: Any = super().load(seed)
        return Splits(_Noisy(splits.train.inputs, splits.train.targets), splits.validation, splits.test)


class _Lending(TensorDataset):
    def batch(self, indices: Sequence[int], key: int) -> Batch:
        if len(indices) == 1:
            return Batch(self.inputs[indices[0] : indices[0] + 1], self.targets[indices[0] : indices[0] + 1])
        return super().batch(indices, key)


class Lending(SoundTask):
    """Hands out its own memory."""

    def load(self, seed: int) -> Splits:
        splits: Any = super().load(seed)
        return Splits(_Lending(splits.train.inputs, splits.train.targets), splits.validation, splits.test)


class HashedTask(SoundTask):
    """Depends on the hash of a text."""

    def load(self, seed: int) -> Splits:
        return super().load(seed + hash("hashed") % 1000)


class Leaking(SoundTask):
    """Validates on what it trains on."""

    def load(self, seed: int) -> Splits:
        splits = super().load(seed)
        return Splits(splits.train, splits.train, splits.test)


class Averaged(SoundTask):
    """Its loss is a mean."""

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        return F.cross_entropy(outputs, targets)


class Weightless(SoundTask):
    """Its weight is that of a batch."""

    def weight(self, targets: Any) -> float:
        return 1.0


class MeanMeasure(SoundTask):
    """Measures an accuracy."""

    def measure(self, outputs: Any, targets: Any) -> dict[str, float]:
        return {"correct": float((outputs.argmax(dim=1) == targets).float().mean()) + 0.125}


class Silent(SoundTask):
    """Promises a metric that it does not return."""

    @property
    def directions(self) -> Any:
        return {"accuracy": "maximize", "f1": "maximize"}


class Recording(SoundTask):
    """Counts what it measures."""

    measured = 0

    def measure(self, outputs: Any, targets: Any) -> Any:
        self.measured += len(targets)
        return super().measure(outputs, targets)
