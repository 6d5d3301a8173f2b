"""The process of one stage: its task, how it joins the other processes, and its result."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import distributed
from torch.distributed.distributed_c10d import Store

from naspipe.config.resolve import resolve
from naspipe.config.source import read_text
from naspipe.errors import NaspipeWarning, TrainingError
from naspipe.files import save_tensors
from naspipe.pipeline.costs import CostTable
from naspipe.pipeline.parts import PipelineParts
from naspipe.supernet.determinism import deterministic
from naspipe.training.components import build_components
from naspipe.training.context import RunContext
from naspipe.training.distributed.agreement import compare_processes, describe_process, require_token, telling_faults
from naspipe.training.distributed.launcher import LOST, end_with, find_store
from naspipe.training.distributed.leftovers import working_in
from naspipe.training.distributed.requirements import backend_of, require_gpus
from naspipe.training.distributed.transport import Distributed, connect_stages
from naspipe.training.drain_schedule import DrainSchedule
from naspipe.training.files import TrainingFiles
from naspipe.training.recorder import Recorder
from naspipe.training.session import AllStages, SessionResult, TrainingSession

if TYPE_CHECKING:
    from naspipe.pipeline.action import PlannedAction
    from naspipe.supernet.supernet import Supernet
    from naspipe.training.checkpoint import Checkpoint, CheckpointFolder
    from naspipe.training.tensor_spec import PayloadSpec

STOP = "naspipe/stop"
"""Key in the store; a process on another machine sets it to stop the training."""

PATIENCE_SECONDS = 2.0
"""Seconds that a process waits for the request to stop after SIGTERM."""

PATIENCE_LOOKS = 20
"""Number of looks for the request in that time."""


class StageTask(NamedTuple):
    """The task of the processes of all stages.

    Attributes:
        config: The run's resolved configuration, as YAML.
        costs: The costs of the blocks, as a table's JSON.
        folder: The folder of the training's files.
        record: Whether to record each action and digest each layer.
        token: A file that rank 0 has made, which every process must see; empty: there is none.
    """

    config: str
    costs: str
    folder: str
    record: bool
    token: str = ""

    @property
    def files(self) -> TrainingFiles:
        """The training's files."""
        return TrainingFiles(Path(self.folder))


class OneStage(AllStages):
    """The place of a session in the process of one stage; its rank is the stage's number."""

    def __init__(self, stage: int, stages: int, store: Store) -> None:
        """Describe the process; the default process group exists when the session runs.

        Args:
            stage: The stage of this process.
            stages: Number of stages, and of processes.
            store: The store of the processes.
        """
        self.stage = stage
        self.leads = stage == 0
        self.logs = stage == stages - 1
        self.processes = stages
        self._store = store

    def connect(self, result_spec: Callable[[PlannedAction], PayloadSpec], context: RunContext) -> Distributed:
        """Return the transport to the neighbours; every process calls it."""
        executor, device = context.config.executor, context.config.training.device
        assert self.stage is not None
        channels = connect_stages(backend_of(context.config), executor.stages, executor.timeout)
        parts = PipelineParts(executor.stages, executor.segments)
        return Distributed(self.stage, parts, result_spec, executor.timeout, channels, device)

    def find_checkpoint(self, checkpoints: CheckpointFolder) -> Checkpoint | None:
        """Return the last complete checkpoint, as stage 0 has found it."""
        found = checkpoints.start() if self.leads else None
        said = [found.subnet if found is not None else None]
        distributed.broadcast_object_list(said)
        if found is not None or said[0] is None:
            return found
        return checkpoints.open(said[0], check=False)

    def schedule_drains(self, context: RunContext, must_stop: Callable[[], bool]) -> DrainSchedule:
        """Return the schedule of drains. Stage 0 decides, and also stops if another machine asks for it."""

        def must_stop_here() -> bool:
            return must_stop() or self._store.check([STOP])

        settings = context.config.executor.checkpoint
        return DrainSchedule(settings, context.contract, must_stop_here, self._store, self.leads)

    def wait_for_others(self) -> None:
        """Wait until all processes have come here."""
        distributed.barrier()

    def save(self, supernet: Supernet, own: range, files: TrainingFiles, is_finished: bool) -> None:
        """Save the weights of this stage; ``train_in_processes`` joins those of all stages."""
        assert self.stage is not None
        weights = supernet.blocks.state_dict()
        tensors = {name: tensor for name, tensor in weights.items() if int(name.partition(".")[0]) in own}
        save_tensors(files.stage(self.stage), tensors, {"format": "pt"})


def start_stage(task: StageTask, launcher: int) -> list[SessionResult]:
    """Train one stage; runs in a process that the elastic launcher has started.

    Args:
        task: The task.
        launcher: Process id of the launcher; this process ends when the launcher does.

    Returns:
        As ``train_stage``.

    Raises:
        TrainingError: A block failed, a message did not come, or the processes differ.
    """
    end_with(launcher)
    heed_sigterm(task.files.stop_request)
    return train_stage(task, find_store())


def heed_sigterm(stop_request: Path) -> None:
    """After SIGTERM, end this process, unless the training has been asked to stop: then it ends by itself.

    A scheduler sends the signal to all processes, and the leading one asks the training to stop. A launcher sends the
    signal to the other processes if one has failed.

    Args:
        stop_request: The file that exists while the training is asked to stop.
    """

    def look() -> None:
        for _ in range(PATIENCE_LOOKS):
            if stop_request.exists():
                return
            time.sleep(PATIENCE_SECONDS / PATIENCE_LOOKS)
        os._exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=look, daemon=True).start())


def train_stage(task: StageTask, store: Store) -> list[SessionResult]:
    """Train the stage whose number is this process's rank; every process of the group calls it.

    Args:
        task: The task, the same in all processes.
        store: The store of the processes.

    Returns:
        The results of all stages in the process of stage 0; elsewhere an empty list.

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
        working_in(task.files.root),
        warnings.catch_warnings(),
        deterministic(config.training.threads, config.training.device),
    ):
        # All warnings were shown before the processes were started.
        warnings.simplefilter("ignore", NaspipeWarning)
        with telling_faults(store, stage):
            costs = CostTable.model_validate_json(task.costs)
            context = RunContext(config, build_components(config), costs)
            facts = describe_process(config, context.splits)
        with _missing_others(stage):
            compare_processes(store, stage, stages, facts, timeout)
            if stage == 0 and task.token:
                # All processes have seen it.
                Path(task.token).unlink(missing_ok=True)
            # Control messages go by gloo; activations and gradients have channels of their own.
            distributed.init_process_group("gloo", timeout=timeout, store=store, rank=stage, world_size=stages)
            session = TrainingSession(
                context,
                task.files,
                OneStage(stage, stages, store),
                recorder=Recorder(config.training.device) if task.record else None,
                must_stop=task.files.stop_request.exists,
            )
            result = session.run(task.record)
            results: list[SessionResult | None] | None = [None] * stages if stage == 0 else None
            distributed.gather_object(result, results)
            distributed.barrier()
            distributed.destroy_process_group()
    return [found for found in results or [] if found is not None]


@contextlib.contextmanager
def _missing_others(stage: int) -> Iterator[None]:
    """Explain a failure of torch's communication; a failure in a block or a task was named where it happened.

    Raises:
        TrainingError: It failed.
    """
    try:
        yield
    except RuntimeError as error:
        raise TrainingError(
            f"stage {stage} on {socket.gethostname()} cannot continue without the others, and one {LOST}: {error}"
        ) from error
