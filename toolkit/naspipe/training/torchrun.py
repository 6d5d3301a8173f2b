"""Processes that torchrun has started: rank 0 leads the run, the others train their stages and end.

torchrun starts one command in every process. The leader makes the folder, checks everything and later searches;
what it wants trained it puts into the store by which torchrun's processes find each other.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta

from torch.distributed.distributed_c10d import PrefixStore, Store

from naspipe.training.launcher import end_with, find_store
from naspipe.training.stage import StageResult, StageTask, heed_sigterm, train_stage

TASK = "naspipe/task"
"""The key under which the leader says what is to be done."""

PATIENCE = timedelta(days=7)
"""How long the others wait for the leader, which may load data and measure first; if it fails, torchrun ends them."""


def lead(task: StageTask) -> list[StageResult]:
    """Train stage 0 here and the others in the processes that follow; return what all hand back.

    Raises:
        TrainingError: This stage failed, or another one did and is missed.
    """
    end_with(os.getppid())
    store = find_store()
    store.set(TASK, json.dumps(task._asdict()))
    return _train(task, store)


def follow() -> None:
    """Wait for the leader and train this process's stage.

    Raises:
        TrainingError: This stage failed, or another one did and is missed.
    """
    # From now on: torchrun may be killed while this process still waits.
    end_with(os.getppid())
    store = find_store()
    store.wait([TASK], PATIENCE)
    task = StageTask(**json.loads(store.get(TASK)))
    heed_sigterm(task)
    _train(task, store)


def _train(task: StageTask, store: Store) -> list[StageResult]:
    return train_stage(task, PrefixStore("naspipe/training", store))
