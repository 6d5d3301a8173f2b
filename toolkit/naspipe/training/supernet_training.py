"""Supernet training as all commands run it: in this process, or with one process for each stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from naspipe.pipeline.plan import Plan
from naspipe.supernet.supernet import Supernet
from naspipe.training.checkpoint import CheckpointFolder
from naspipe.training.context import RunContext
from naspipe.training.files import TrainingFiles
from naspipe.training.progress import Progress, Watch, ignore
from naspipe.training.recorder import RecordedAction, Recorder, trace_of
from naspipe.training.session import TrainingSession
from naspipe.training.trainer import SubnetRecord


class TrainingResult(NamedTuple):
    """The result of a training, without its files.

    Attributes:
        trained: Number of subnets that have been trained, those before a resume included.
        drained: The subnets before which the pipeline was drained, since the last resume.
        digests: Digest of each layer: weights, optimizer state and version; empty unless recorded.
        actions: The actions of all stages since the last resume; empty unless recorded.
        peak_memory: Peak memory of each process, in MiB.
    """

    trained: int
    drained: list[int]
    digests: dict[str, str]
    actions: list[RecordedAction]
    peak_memory: list[float]


def train_supernet(
    context: RunContext,
    files: TrainingFiles,
    *,
    watch: Watch = ignore,
    record: bool = False,
    must_stop: Callable[[], bool] = lambda: False,
    supernet: Supernet | None = None,
) -> TrainingResult:
    """Train a supernet, or resume its training from the last checkpoint.

    Args:
        context: The run, with known costs.
        files: Files of log, checkpoints and weights. The weights are saved once all subnets have been trained.
        watch: Called with the progress.
        record: Whether to record each action and digest each layer.
        must_stop: Tells whether the training is asked to stop; processes of stages look for ``files.stop_request``
            instead.
        supernet: An untrained supernet to train in place; by default a new one is built. Processes of stages do not
            use it.

    Raises:
        TrainingError: The training cannot continue.
        RunError: A file cannot be written.
    """
    if context.config.executor.transport == "distributed":
        # torch.distributed is imported only where it is used.
        from naspipe.training.distributed.processes import train_in_processes

        results = train_in_processes(context, files, watch, record)
    else:
        training = context.config.training

        def on_subnet(record: SubnetRecord) -> None:
            watch(Progress.of_subnet(record.index, record.loss, training.subnets))

        recorder = Recorder(training.device) if record else None
        session = TrainingSession(
            context, files, on_subnet=on_subnet, recorder=recorder, must_stop=must_stop, supernet=supernet
        )
        results = [session.run(record)]
    return TrainingResult(
        results[0].trained,
        results[0].drained,
        {layer: digest for result in results for layer, digest in result.digests.items()},
        [action for result in results for action in result.actions],
        [result.peak_memory for result in results],
    )


def make_trace(context: RunContext, result: TrainingResult) -> tuple[Plan, Plan]:
    """Return the plan that a recorded training followed from the first subnet on, and its trace."""
    plan = context.planning.plan(drained=result.drained)
    return plan, trace_of(plan, result.actions)


def finish_training(files: TrainingFiles) -> None:
    """Remove the checkpoints of a training, once the supernet has been saved."""
    CheckpointFolder(files.checkpoints).remove_all()
    files.remove_stages()
