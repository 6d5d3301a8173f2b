"""A stage in a process of its own: what it trains, leaves and reports; started by whoever starts processes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import threading
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import distributed
from torch.distributed.distributed_c10d import Store

from naspipe.components import build_components, contract_of
from naspipe.config.resolve import resolve
from naspipe.config.schema import RunConfig
from naspipe.config.source import read_text
from naspipe.environment import describe_environment
from naspipe.errors import NaspipeWarning, TrainingError
from naspipe.files import JsonLines, keep_lines, save_tensors
from naspipe.runs.remains import working_in
from naspipe.training.channels import connect_stages
from naspipe.training.checkpoint import Checkpoint, CheckpointFolder
from naspipe.training.determinism import deterministic
from naspipe.training.gatekeeper import Gatekeeper
from naspipe.training.launcher import end_with, find_store
from naspipe.training.parts import part_file
from naspipe.training.recorder import Recorder, Row
from naspipe.training.setup import layer_digests, peak_memory, prepare_trainer, reset_peak_memory
from naspipe.training.transport import Distributed

if TYPE_CHECKING:
    from naspipe.training.loop import Cut, SubnetRecord


PATIENCE_SECONDS = 2.0
"""After SIGTERM, the time that a process waits for the request to stop."""

PATIENCE_LOOKS = 20
"""Looks for it meanwhile."""


class StageTask(NamedTuple):
    """What the processes of all stages are told.

    Attributes:
        config: The run's resolved configuration, as YAML.
        folder: Where the stages leave their layers until all have ended.
        metrics: Where the last stage logs each subnet.
        record: Record each action, and digest each layer.
        checkpoints: Where checkpoints are, from which training goes on; empty: there are to be none.
        stop: A file that is made when the training is to stop.
    """

    config: str
    folder: str
    metrics: str
    record: bool
    checkpoints: str = ""
    stop: str = ""


class StageResult(NamedTuple):
    """What the process of a stage hands back.

    Attributes:
        digests: Digest of each of its layers; empty unless it was asked to record.
        rows: What its recorder collected.
        peak_memory: Its peak memory, in MiB.
        trained: Subnets that have been trained, in earlier parts of the training too.
        cuts: The subnets before which the plan was cut.
    """

    digests: dict[str, str]
    rows: list[Row]
    peak_memory: float
    trained: int
    cuts: list[int]


def start_stage(task: StageTask, launcher: int) -> list[StageResult]:
    """Train one stage; runs in a process that the elastic launcher has started.

    Args:
        task: What is to be done.
        launcher: Process id of the launcher, which this process does not outlive.

    Returns:
        As ``train_stage``.

    Raises:
        TrainingError: A block failed, a message did not come, or the processes differ.
    """
    end_with(launcher)
    heed_sigterm(task)
    return train_stage(task, find_store())


def heed_sigterm(task: StageTask) -> None:
    """Go on after SIGTERM if the training has been asked to stop, for then it ends by itself; else end the process.

    A scheduler sends the signal to all processes, and the one that leads asks; a launcher sends it to the others when
    one of them has failed.
    """

    def look() -> None:
        for _ in range(PATIENCE_LOOKS):
            if task.stop and Path(task.stop).exists():
                return
            time.sleep(PATIENCE_SECONDS / PATIENCE_LOOKS)
        os._exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=look, daemon=True).start())


def train_stage(task: StageTask, store: Store) -> list[StageResult]:
    """Train the stage whose number is this process's rank; every process of the group calls it.

    Args:
        task: What is to be done, the same in all processes.
        store: By which the processes find each other.

    Returns:
        What every stage hands back, in the process of stage 0; elsewhere nothing.

    Raises:
        TrainingError: A block failed, a message did not come, or the processes differ.
    """
    config = resolve(read_text(task.config, "the run's configuration", Path.cwd()))
    stage, stages = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    timeout = timedelta(seconds=config.executor.timeout)
    if config.training.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    with (
        working_in(Path(task.folder)),
        warnings.catch_warnings(),
        deterministic(config.training.threads, config.training.device),
    ):
        # What there is to warn of was said before the processes were started.
        warnings.simplefilter("ignore", NaspipeWarning)
        # Control goes by gloo; what a training passes on goes by channels of its own.
        distributed.init_process_group("gloo", timeout=timeout, store=store, rank=stage, world_size=stages)
        _compare_processes(config)
        result = _train(config, task, stage, stages, store)
        results: list[StageResult | None] | None = [None] * stages if stage == 0 else None
        distributed.gather_object(result, results)
        distributed.barrier()
        distributed.destroy_process_group()
    return [found for found in results or [] if found is not None]


def _train(config: RunConfig, task: StageTask, stage: int, stages: int, store: Store) -> StageResult:
    folder = CheckpointFolder(Path(task.checkpoints)) if task.checkpoints else None
    checkpoint = _agree_on_checkpoint(folder, stage)
    components = build_components(config)
    splits = components.task.load(config.seed)
    reset_peak_memory(config.training.device)
    channels = connect_stages(backend_of(config), stages, config.executor.timeout)
    gatekeeper = None
    if folder is not None:
        contract = contract_of(config, components.executor)
        gatekeeper = Gatekeeper(config.executor.checkpoint, contract, Path(task.stop).exists, store, stage == 0)
    prepared = prepare_trainer(
        config, components, splits, stage=stage, checkpoint=checkpoint, gatekeeper=gatekeeper,
        connect=lambda signature: Distributed(
            stage, config.executor.segments, signature, config.executor.timeout, channels, config.training.device
        ),
    )  # fmt: skip
    trainer, cuts = prepared.trainer, prepared.cuts
    if stage == stages - 1:
        # What is trained again is logged again.
        keep_lines(Path(task.metrics), checkpoint.subnet if checkpoint is not None else 0)
    with JsonLines(Path(task.metrics)) if stage == stages - 1 else contextlib.nullcontext() as log:

        def on_subnet(record: SubnetRecord) -> None:
            assert log is not None
            log.append({**vars(record), "architecture": dict(record.architecture)})

        def on_cut(cut: Cut) -> None:
            assert folder is not None
            if log is not None:
                log.sync()
            folder.write_part(cut.subnet, stage, trainer.own_layers())
            distributed.barrier()
            if stage == 0:
                folder.finish(cut.subnet, stages, cut.sampler, config.executor.checkpoint.keep)

        recorder = Recorder(config.training.device) if task.record else None
        trained = trainer.run(on_subnet, recorder, on_cut)
    segments = config.executor.segments
    own = range(cuts[stage * segments], cuts[(stage + 1) * segments])
    weights = prepared.supernet.blocks.state_dict()
    tensors = {name: tensor for name, tensor in weights.items() if int(name.partition(".")[0]) in own}
    save_tensors(part_file(Path(task.folder), stage), tensors, {"format": "pt"})
    return StageResult(
        layer_digests(trainer) if task.record else {},
        recorder.rows if recorder else [],
        peak_memory(config.training.device),
        trained,
        sorted(gatekeeper.cuts) if gatekeeper is not None else [],
    )


def _agree_on_checkpoint(folder: CheckpointFolder | None, stage: int) -> Checkpoint | None:
    """Return the checkpoint that all stages go on from, which stage 0 has found to be whole."""
    if folder is None:
        return None
    found = folder.start() if stage == 0 else None
    said = [found.subnet if found is not None else None]
    distributed.broadcast_object_list(said)
    if found is not None or said[0] is None:
        return found
    return folder.open(said[0], check=False)


def backend_of(config: RunConfig) -> str:
    """Return the backend that moves what a training passes on."""
    if config.executor.backend != "auto":
        return config.executor.backend
    return "nccl" if config.training.device == "cuda" else "gloo"


def _compare_processes(config: RunConfig) -> None:
    """Make sure that all processes compute alike.

    Raises:
        TrainingError: One differs in configuration, versions, or kind of processor; it says which and how.
    """
    environment = describe_environment(config.seed, config.training.threads)
    own: dict[str, Any] = {
        "configuration": hashlib.sha256(config.to_yaml().encode()).hexdigest(),
        "packages": environment["packages"],
        "CPU capability": environment["cpu"]["capability"],
    }
    if config.training.device == "cuda":
        own["GPU model"] = torch.cuda.get_device_name()
    everyone: list[dict[str, Any]] = [{} for _ in range(distributed.get_world_size())]
    distributed.all_gather_object(everyone, own)
    for rank, other in enumerate(everyone):
        for key, value in everyone[0].items():
            if other[key] != value:
                raise TrainingError(
                    f"all processes must be alike, but {key} of stage {rank} is {other[key]!r}, and of stage 0 "
                    f"{value!r}."
                )
