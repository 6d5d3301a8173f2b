"""Checks before processes train together: each sees the run's folder, can train, and computes as the others do."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import Store
from torch.utils import _pytree as pytree  # flattens any nest; torch offers no public one

from naspipe.config.schema import RunConfig
from naspipe.environment import describe_environment
from naspipe.errors import TrainingError
from naspipe.files import digest_tensors, write_text
from naspipe.tasks.data import EpochOrder, Splits
from naspipe.usercode import calling

LOOKS = 10
"""Number of times that a process looks for the file of rank 0: a network's file system may be late."""

PAUSE_SECONDS = 0.5
"""Seconds between two looks."""


@contextlib.contextmanager
def token_in(folder: Path) -> Iterator[Path]:
    """Make a file by which other processes check that they see a folder; the file is removed at the end or earlier."""
    # A new name each time, since a machine may remember that an old one did not exist. Leftovers are cleared away.
    token = folder / f".shared.{time.time_ns()}"
    write_text(token, "")
    try:
        yield token
    finally:
        token.unlink(missing_ok=True)


def require_token(token: Path) -> None:
    """Raise an error unless this process sees the file that rank 0 has made.

    Raises:
        TrainingError: It does not see the file.
    """
    for _ in range(LOOKS):
        if token.exists():
            return
        time.sleep(PAUSE_SECONDS)
    raise TrainingError(
        "every process must see the run's folder, but this one does not find the file that rank 0 has just made there, "
        f"{token}. Put the run (--out) into a folder that all machines share under one path."
    )


@contextlib.contextmanager
def telling_faults(store: Store, rank: int) -> Iterator[None]:
    """Tell the other processes, which wait in ``compare_processes``, if this process cannot train."""
    try:
        yield
    except Exception as error:
        _tell(store, rank, fault=str(error) or type(error).__name__)
        raise


def compare_processes(store: Store, rank: int, ranks: int, facts: Mapping[str, Any], timeout: timedelta) -> None:
    """Check that all processes compute alike; every process calls it.

    Args:
        store: The store of the processes.
        rank: Rank of this process.
        ranks: Number of processes.
        facts: The facts that must be equal, as ``describe_process`` returns them.
        timeout: How long to wait for the others.

    Raises:
        TrainingError: A process differs, cannot train, or does not answer. The message names process and machine.
    """
    _tell(store, rank, facts=facts)
    reports = [_hear(store, other, timeout) for other in range(ranks)]
    for other, report in enumerate(reports):
        if "fault" in report:
            raise TrainingError(f"stage {other} on {report['host']} cannot train: {report['fault']}")
    first = reports[0]
    for other, report in enumerate(reports):
        for key, value in first["facts"].items():
            if report["facts"].get(key) != value:
                raise TrainingError(
                    f"all processes must be alike, but {key} of stage {other} on {report['host']} is "
                    f"{report['facts'].get(key)!r}, and of stage 0 on {first['host']} {value!r}. Make them the same "
                    "everywhere."
                )


def describe_process(config: RunConfig, splits: Splits) -> dict[str, Any]:
    """Return the facts that must be equal in all processes, by names for people; the most helpful first."""
    environment = describe_environment(config.seed, config.training.threads)
    facts: dict[str, Any] = {
        "the command line": sys.argv[1:],
        "the version of Python": environment["python"],
        **{f"the version of {name}": version for name, version in environment["packages"].items()},
        "the configuration's digest": hashlib.sha256(config.to_yaml().encode()).hexdigest(),
        "the CPU's capability": environment["cpu"]["capability"],
    }
    if config.training.device == "cuda":
        facts["the GPU"] = torch.cuda.get_device_name()
    return {**facts, "the data's sizes": splits.sizes(), "the data's digest": digest_data(config, splits)}


def digest_data(config: RunConfig, splits: Splits) -> str:
    """Return a digest of the training batches at the beginning, the middle and the end.

    They are drawn as the training draws them. So the digest differs if the order of the samples or the augmentation
    differs, or if all samples differ (by version, tokenizer or preprocessing). It does not cover samples outside these
    batches, nor the validation and test splits, which only rank 0 reads.
    """
    order = EpochOrder(splits.train, config.training.batch_size, config.seed, "train")
    last = config.training.subnets - 1
    digest = hashlib.sha256()
    for index in sorted({0, last // 2, last}):
        with calling(f"batch {index} of the training data", TrainingError):
            batch = order.batch(index)
        for value in pytree.tree_leaves((batch.inputs, batch.targets)):
            # Equal objects may have different texts, except numbers and texts.
            plain = isinstance(value, bool | int | float | str | bytes | None)
            text = digest_tensors({"": value}) if isinstance(value, Tensor) else repr(value if plain else type(value))
            digest.update(text.encode())
    return digest.hexdigest()


def _key(rank: int) -> str:
    return f"naspipe/agreement/{rank}"


def _tell(store: Store, rank: int, **report: Any) -> None:
    store.set(_key(rank), json.dumps({"host": socket.gethostname(), **report}))


def _hear(store: Store, rank: int, timeout: timedelta) -> dict[str, Any]:
    try:
        store.wait([_key(rank)], timeout)
    except DistStoreError as error:
        raise TrainingError(
            f"every stage must be ready to train within executor.timeout = {timeout.total_seconds():g} s of the "
            f"first, but stage {rank} is not. If its machine needs longer to load the data, raise executor.timeout."
        ) from error
    report: dict[str, Any] = json.loads(store.get(_key(rank)))
    return report
