"""The checks of a task."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree  # as in tasks.data

from naspipe.errors import TaskError
from naspipe.files import digest_tensors
from naspipe.keys import derive_key, draw_permutation, keyed_random
from naspipe.search.evaluation import add_batch_sums, add_sums, as_mapping
from naspipe.search.measure import as_number
from naspipe.search.objective import read_directions
from naspipe.supernet.supernet import Supernet
from naspipe.tasks.classification import ClassificationTask
from naspipe.tasks.data import Batch, Dataset, Splits, split_batch
from naspipe.tasks.loading import load_splits
from naspipe.tasks.task import Task
from naspipe.testing.check import CheckList, ConformanceError, NotApplicableError, require
from naspipe.testing.elsewhere import ask_elsewhere
from naspipe.testing.passes import as_in_training, fresh
from naspipe.testing.subject import SEED, Subject
from naspipe.testing.watching import changes, global_generators_untouched, kept_generators, stir_generators

SAMPLES = 8
"""Samples of a batch in the checks, at most."""

MOST = 2_000
"""Samples of a split that are compared, at most."""

DUPLICATES = 0.05
"""Share of equal samples that data may have."""

TOLERANCE = 1e-5
"""Relative tolerance of sums: two halves are summed in another order than the whole."""

checks = CheckList(as_in_training)


def _splits(splits: Splits) -> dict[str, Dataset]:
    return {"train": splits.train, "validation": splits.validation, "test": splits.test}


def _batches(data: Dataset) -> Iterator[tuple[list[int], int]]:
    """Yield indices and keys of a few batches of a split; the last has one sample."""
    count = len(data)
    order = draw_permutation(keyed_random(SEED, "samples"), count)
    for number, size in enumerate((SAMPLES, SAMPLES, 3, 1)):
        first = number * SAMPLES % count
        yield [order[(first + place) % count] for place in range(min(size, count))], derive_key(SEED, "batch", number)


def _digest(batch: Any) -> str:
    leaves, structure = pytree.tree_flatten((batch.inputs, batch.targets))
    tensors = {str(number): leaf for number, leaf in enumerate(leaves) if isinstance(leaf, Tensor)}
    rest = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
    return f"{structure} {rest!r} {digest_tensors(tensors)}"


def _digests(splits: Splits) -> dict[str, list[str]]:
    """Return the size and the digests of some batches of every split."""
    return {
        name: [f"{len(data)} samples", *(_digest(data.batch(indices, key)) for indices, key in _batches(data))]
        for name, data in _splits(splits).items()
    }


@checks()
def the_splits_have_samples(subject: Subject) -> None:
    """Load returns three splits with samples, and a batch has a sample for each index."""
    for name, data in _splits(subject.loaded[1]).items():
        for indices, key in _batches(data):
            batch = data.batch(indices, key)
            require(isinstance(batch, Batch), f"batch() of {name} must return naspipe.Batch, but returned {batch!r}.")
            for what, nest in (("inputs", batch.inputs), ("targets", batch.targets)):
                for tensor in (leaf for leaf in pytree.tree_leaves(nest) if isinstance(leaf, Tensor)):
                    require(
                        tensor.dim() > 0 and len(tensor) == len(indices),
                        f"batch() of {name} must return a sample for each of {len(indices)} indices along dimension "
                        f"0, but returned {what} of shape {tuple(tensor.shape)}.",
                    )


@checks("the_splits_have_samples")
def batches_depend_on_their_key_alone(subject: Subject) -> None:
    """A batch depends on indices and key only, not on earlier batches or a global generator."""
    for name, data in _splits(load_splits(subject.make(), SEED)).items():
        asked = list(_batches(data))
        with kept_generators():
            stir_generators(1)
            with global_generators_untouched(f"batch() of {name}"):
                first = [_digest(data.batch(indices, key)) for indices, key in asked]
            stir_generators(2)
            again = list(reversed(list(zip(asked, first, strict=True))))
            for (indices, key), expected in [*again, *again]:
                batch = data.batch(indices, key)
                require(
                    _digest(batch) == expected,
                    f"a batch must be a function of its indices and key, but batch() of {name} gives another result "
                    f"for {len(indices)} samples and key {key} in a second call. Draw from "
                    "torch.Generator().manual_seed(key), and return copies.",
                )
                # The receiver of a batch may change it.
                for tensor in pytree.tree_leaves(batch.inputs):
                    if isinstance(tensor, Tensor):
                        tensor.zero_()


@checks("batches_depend_on_their_key_alone")
def loading_again_gives_the_same(subject: Subject) -> None:
    """Load gives equal splits for equal seeds, and neither reads nor changes global generators."""
    with kept_generators():
        stir_generators(1)
        with global_generators_untouched("load"):
            splits = load_splits(subject.make(), SEED)
        first = _digests(splits)
        stir_generators(2)
        for what, task in (("a new task", subject.make()), ("the same task", subject.make())):
            for _ in range(1 if what == "a new task" else 2):
                again = _digests(load_splits(task, SEED))
            for name, expected in first.items():
                require(
                    again[name] == expected,
                    f"equal seeds must give equal splits, but {what} loads another {name} split. Draw from "
                    "naspipe.keyed_random, or from a torch.Generator with a seed.",
                )


def fingerprint(subject: Subject) -> dict[str, list[str]]:
    """Return values that must be equal in all processes."""
    with as_in_training():
        return _digests(load_splits(subject.make(), SEED))


@checks("loading_again_gives_the_same")
def another_process_loads_the_same(subject: Subject) -> None:
    """Another process, with another hash seed, loads equal splits and batches."""
    here, there = fingerprint(subject), ask_elsewhere(fingerprint, subject)
    for name, expected in here.items():
        require(
            there[name] == expected,
            f"all processes must load the same data, but the {name} split differs in another one. Does it depend on "
            "the order of a set, on hash(), or on the order in which files are listed?",
        )


@checks("the_splits_have_samples")
def splits_share_no_samples(subject: Subject) -> None:
    """No two splits share samples, as judged by equal inputs; a few duplicates in the data are allowed."""
    samples = {
        name: [_digest(Batch(data.batch([index], 0).inputs, None)) for index in range(min(len(data), MOST))]
        for name, data in _splits(subject.loaded[1]).items()
    }
    for name, digests in samples.items():
        if 1 - len(set(digests)) / len(digests) > DUPLICATES:
            raise NotApplicableError(
                f"the {name} split itself has many equal samples, so shared samples cannot be recognised"
            )
    for one, other in (("train", "validation"), ("train", "test"), ("validation", "test")):
        known = set(samples[one])
        shared = sum(digest in known for digest in samples[other])
        require(
            shared <= DUPLICATES * min(len(samples[one]), len(samples[other])),
            f"splits must not share samples, but {shared} of {len(samples[other])} samples of {other} are in {one} "
            "too. Models would be evaluated on samples of their training.",
        )


def _judged(subject: Subject) -> tuple[Task, Any, Any]:
    """Return a task, with outputs and targets of some samples of the training split."""
    task, splits = subject.loaded
    count = min(len(splits.train), SAMPLES)
    if count < 2:
        raise NotApplicableError("the training split has one sample, and nothing to add up")
    batch = splits.train.batch(list(range(count)), key=0)
    if subject.space_subject is not None:
        supernet = Supernet(subject.space_subject.make(), SEED)
        architecture = supernet.space.random_architecture(keyed_random(SEED, "task"))
        with torch.no_grad():
            return task, supernet(fresh(batch.inputs), architecture), batch.targets
    return task, _invent(task, batch.targets, splits), batch.targets


def _add_sums_of_module(subject: Subject, totals: dict[str, float]) -> None:
    """Add the sums of the task's ``measure_module`` for a subnet."""
    assert subject.space_subject is not None
    task, splits = subject.loaded
    supernet = Supernet(subject.space_subject.make(), SEED)
    subnet = supernet.extract(supernet.space.random_architecture(keyed_random(SEED, "task"))).eval()
    batch = splits.train.batch(list(range(min(len(splits.train), SAMPLES))), key=0)
    add_sums(totals, task.measure_module(subnet, batch, splits.train, 0), task, "measure_module")


def _invent(task: Task, targets: Any, splits: Splits) -> Any:
    """Return random outputs that fit the targets, where no space is given."""
    generator = torch.Generator().manual_seed(SEED)
    if isinstance(task, ClassificationTask):
        known = splits.train.batch(list(range(min(len(splits.train), MOST))), key=0).targets
        return torch.randn(len(targets), int(known.max()) + 1, generator=generator)
    if isinstance(targets, Tensor) and targets.is_floating_point():
        return torch.randn(targets.shape, generator=generator, dtype=targets.dtype)
    raise NotApplicableError("the shape of its outputs is not known: give a space that fits the task")


def _parts(outputs: Any, targets: Any) -> list[Batch]:
    return split_batch(Batch(outputs, targets), 2)


def _same(whole: float, parts: float) -> bool:
    return math.isclose(whole, parts, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


@checks("the_splits_have_samples")
def the_loss_is_a_sum_over_samples(subject: Subject) -> None:
    """The loss is a scalar with a gradient, and a batch has the sum of the losses of its halves (within 1e-5)."""
    task, outputs, targets = _judged(subject)
    tracked = pytree.tree_map(
        lambda v: v.detach().clone().requires_grad_() if isinstance(v, Tensor) and v.is_floating_point() else v, outputs
    )
    loss: object = task.loss(tracked, targets)
    what = f"{type(task).__name__}.loss"
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        raise ConformanceError(f"{what} must return a scalar tensor, but returned {loss!r}.")
    require(bool(loss.isfinite()), f"{what} must be finite, but is {loss.item()} on outputs near 0.")
    require(loss.requires_grad, f"{what} must have a gradient, but is computed without one.")
    torch.autograd.backward(loss)
    parts = [float(task.loss(part.inputs, part.targets)) for part in _parts(outputs, targets)]
    whole = float(task.loss(outputs, targets))
    require(
        _same(whole, sum(parts)),
        f"{what} must be summed over samples, so that micro-batches add up, but a batch has {whole:.8g} and its "
        f"halves have {' + '.join(f'{part:.8g}' for part in parts)}. Use reduction='sum'.",
    )


@checks("the_splits_have_samples")
def the_weight_adds_up(subject: Subject) -> None:
    """The weight of a batch is above 0, and is the sum of the weights of its halves."""
    task, splits = subject.loaded
    data = splits.train
    if len(data) < 2:
        raise NotApplicableError("the training split has one sample, and nothing to add up")
    targets = data.batch(list(range(min(len(data), SAMPLES))), key=0).targets
    weights = [as_number(task.weight(part)) for part in (targets, *(b.targets for b in _parts(targets, targets)))]
    what = f"{type(task).__name__}.weight"
    for weight in weights:
        require(weight is not None and weight > 0, f"{what} must return a number above 0, but returned {weight!r}.")
    whole, *parts = [float(weight) for weight in weights if weight is not None]
    require(
        _same(whole, sum(parts)),
        f"{what} must add up, but that of a batch is {whole:g} and those of its halves are {parts[0]:g} and "
        f"{parts[1]:g}. Return the number of samples, or of tokens.",
    )


@checks("the_splits_have_samples")
def measures_add_up(subject: Subject) -> None:
    """The result of measure for a batch is the sum of its results for the halves (within 1e-5)."""
    task, outputs, targets = _judged(subject)
    what = f"{type(task).__name__}.measure"
    whole = as_mapping(task.measure(outputs, targets), task, "measure")
    parts = [as_mapping(task.measure(p.inputs, p.targets), task, "measure") for p in _parts(outputs, targets)]
    for name, value in whole.items():
        number = as_number(value)
        if number is None:
            raise ConformanceError(
                f"{what} must return numbers, but {name!r} is {value!r} of type {type(value).__name__}."
            )
        missing = [part for part in parts if name not in part]
        require(not missing, f"{what} must always return the same names, but {name!r} is missing for half a batch.")
        total = sum(float(part[name]) for part in parts)
        require(
            _same(float(number), total),
            f"{what} must return sums over samples, but {name!r} is {float(number):.8g} for a batch and {total:.8g} "
            "for its halves together. Let metrics divide by totals['weight'].",
        )


@checks("the_loss_is_a_sum_over_samples", "the_weight_adds_up", "measures_add_up")
def metrics_cover_the_directions(subject: Subject) -> None:
    """Metrics returns a finite number for every metric in directions."""
    task, outputs, targets = _judged(subject)
    try:
        directions = read_directions(task)
    except TaskError as error:
        raise ConformanceError(str(error)) from error
    name = type(task).__name__
    require(bool(directions), f"{name}.directions must name a metric that a search can optimise, but names none.")
    totals: dict[str, float] = {"loss": 0.0, "weight": 0.0}
    with torch.no_grad():
        add_batch_sums(totals, task, outputs, targets)
        if subject.space_subject is not None:
            _add_sums_of_module(subject, totals)
    found = as_mapping(task.metrics(totals), task, "metrics")
    for metric in directions:
        value = as_number(found.get(metric))
        require(
            value is not None and math.isfinite(value),
            f"{name}.metrics must return a finite number for every metric in directions, but {metric!r} is "
            f"{found.get(metric, 'missing')!r}. It returned {dict(found)!r}.",
        )


@checks("metrics_cover_the_directions")
def its_methods_change_nothing(subject: Subject) -> None:
    """After load, no method changes the task."""
    task, outputs, targets = _judged(subject)
    before = copy.deepcopy(task)
    totals: dict[str, float] = {"loss": 0.0, "weight": 0.0}
    with torch.no_grad():
        add_batch_sums(totals, task, outputs, targets)
    task.metrics(totals)
    for place in changes(vars(before), vars(task)):
        raise ConformanceError(f"no method may change the task after load, but {place.strip('[]')} has changed.")
