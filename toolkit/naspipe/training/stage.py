"""A stage in a process of its own: what it trains, leaves and reports; started by whoever starts processes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import distributed
from torch.distributed.distributed_c10d import Store

from naspipe.checks import load_splits
from naspipe.components import Components, build_components, contract_of
from naspipe.config.resolve import resolve
from naspipe.config.schema import RunConfig
from naspipe.config.source import read_text
from naspipe.errors import NaspipeWarning, TrainingError
from naspipe.files import JsonLines, keep_lines, save_tensors
from naspipe.runs.remains import working_in
from naspipe.tasks.data import Splits
from naspipe.training.agreement import compare_processes, describe_process, require_token, telling_faults
from naspipe.training.channels import connect_stages
from naspipe.training.checkpoint import Checkpoint, CheckpointFolder
from naspipe.training.determinism import deterministic
from naspipe.training.devices import backend_of, require_gpus
from naspipe.training.gatekeeper import Gatekeeper
from naspipe.training.launcher import end_with, find_store
from naspipe.training.parts import part_file
from naspipe.training.recorder import Recorder, Row
from naspipe.training.setup import layer_digests, peak_memory, prepare_trainer, reset_peak_memory
from naspipe.training.transport import LOST, Distributed

if TYPE_CHECKING:
    from naspipe.training.events import Cut, SubnetRecord


STOP = "naspipe/stop"
"""The key that is set in the store by a process on another machine when the training is to stop."""

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
        token: A file that rank 0 has made, which every process must see; empty: there is none.
    """

    config: str
    folder: str
    metrics: str
    record: bool
    checkpoints: str = ""
    stop: str = ""
    token: str = ""


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
    stage, stages = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with telling_faults(store, stage):
        if task.token:
            require_token(Path(task.token))
        config = resolve(read_text(task.config, "the run's configuration", Path.cwd()))
        require_gpus(config, int(os.environ["LOCAL_WORLD_SIZE"]))
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
        with telling_faults(store, stage):
            components = build_components(config)
            splits = load_splits(components.task, config.seed)
            facts = describe_process(config, splits)
        with _missing_others(stage):
            compare_processes(store, stage, stages, facts, timeout)
            if stage == 0 and task.token:
                # All have told that they have seen it.
                Path(task.token).unlink(missing_ok=True)
            # Control goes by gloo; what a training passes on goes by channels of its own.
            distributed.init_process_group("gloo", timeout=timeout, store=store, rank=stage, world_size=stages)
            result = _train(config, components, splits, task, stage, stages, store)
            results: list[StageResult | None] | None = [None] * stages if stage == 0 else None
            distributed.gather_object(result, results)
            distributed.barrier()
            distributed.destroy_process_group()
    return [found for found in results or [] if found is not None]


@contextlib.contextmanager
def _missing_others(stage: int) -> Iterator[None]:
    """Say what it means that torch's communication fails; what fails in a block or a task has been named where it did.

    Raises:
        TrainingError: It failed.
    """
    try:
        yield
    except RuntimeError as error:
        raise TrainingError(
            f"stage {stage} on {socket.gethostname()} cannot go on without the others, and one {LOST}: {error}"
        ) from error


def _train(
    config: RunConfig, components: Components, splits: Splits, task: StageTask, stage: int, stages: int, store: Store
) -> StageResult:
    folder = CheckpointFolder(Path(task.checkpoints)) if task.checkpoints else None
    checkpoint = _agree_on_checkpoint(folder, stage)
    reset_peak_memory(config.training.device)
    channels = connect_stages(backend_of(config), stages, config.executor.timeout)
    gatekeeper = None
    if folder is not None:
        contract = contract_of(config, components.executor)
        gatekeeper = Gatekeeper(
            config.executor.checkpoint,
            contract,
            lambda: Path(task.stop).exists() or store.check([STOP]),
            store,
            stage == 0,
        )
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
