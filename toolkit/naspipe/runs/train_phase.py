"""The training phase of a run: trains the supernet, or resumes its training, and saves it."""

from __future__ import annotations

import contextlib

from naspipe.errors import RunFolderError, StoppedError
from naspipe.files import writing
from naspipe.pipeline.planfile import write_plan
from naspipe.results.folder import RunFolder
from naspipe.runs.fingerprint import training_fingerprint
from naspipe.runs.stopping import StopRequest
from naspipe.supernet.supernet import Supernet
from naspipe.training.context import RunContext
from naspipe.training.profiling import measure_costs
from naspipe.training.progress import Watch
from naspipe.training.supernet_training import finish_training, make_trace, train_supernet


def train_run(context: RunContext, folder: RunFolder, watch: Watch, untrained: Supernet | None, trace: bool) -> None:
    """Train a run's supernet and save it; resume from its last checkpoint, if there is one.

    Args:
        context: The run.
        folder: Its folder.
        watch: Called with the progress.
        untrained: An untrained supernet to train in place, or None: a new one is built.
        trace: Whether to write plan and trace; possible only if the training begins with the first subnet.

    Raises:
        RunFolderError: A setting that the result depends on has changed since the training began.
        TrainingError: The training cannot continue.
        StoppedError: SIGTERM came; a checkpoint has been written.
        RunError: A file cannot be written.
    """
    files = folder.training
    training_fingerprint(context, folder).check(files.metrics.exists())
    with writing(files.metrics):
        files.root.mkdir(exist_ok=True)
    measure_costs(context, files.costs, watch)
    stop = StopRequest(files.stop_request)
    # Without checkpoints, SIGTERM need not wait for a drain.
    with stop.heard() if context.contract.can_drain else contextlib.nullcontext():
        result = train_supernet(context, files, watch=watch, record=trace, must_stop=stop.is_made, supernet=untrained)
    subnets = context.config.training.subnets
    stopped = StoppedError(
        f"stopped by SIGTERM after {result.trained:,} of {subnets:,} subnets. {folder.how_to_resume}"
    )
    if result.trained < subnets:
        raise stopped
    finish_training(files)
    if trace:
        plan, recorded = make_trace(context, result)
        write_plan(plan, files.plan)
        write_plan(recorded, files.trace)
    if stop.came:
        raise stopped


def how_to_resume_training(context: RunContext, folder: RunFolder) -> str:
    """Return how to resume a training that was interrupted, as a sentence."""
    if context.contract.can_drain:
        return folder.how_to_resume
    return f"Executor {context.config.executor.name!r} writes no checkpoints. To train anew: {folder.retry}"


def refuse_without_checkpoints(context: RunContext, folder: RunFolder) -> None:
    """Raise an error if a training was interrupted and cannot be resumed exactly.

    Raises:
        RunFolderError: The contract of its executor allows no checkpoints.
    """
    if folder.training.metrics.exists() and not context.contract.can_drain:
        raise RunFolderError(
            f"executor {context.config.executor.name!r} keeps the contract {context.contract}: subnets read weights "
            "that are being changed meanwhile, so at no moment could its training be resumed exactly, and it writes no "
            f"checkpoints. Train anew: `{folder.retry}`."
        )
