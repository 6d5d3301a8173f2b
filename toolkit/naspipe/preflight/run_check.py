"""All checks before a run starts, which are also those of ``naspipe validate``; nothing is written."""

from __future__ import annotations

from naspipe.preflight.layout import check_layout, warn_of_idle_stages
from naspipe.preflight.task_check import check_task
from naspipe.supernet.determinism import deterministic
from naspipe.supernet.supernet import Supernet
from naspipe.training.context import RunContext
from naspipe.training.progress import Watch, ignore
from naspipe.training.session import build_supernet


def check_run(context: RunContext, watch: Watch = ignore) -> Supernet:
    """Refuse a run that could not finish, and warn of settings that would spoil it.

    Args:
        context: The run.
        watch: Called before a step that takes long.

    Returns:
        The untrained supernet that was checked; the checks have not changed it.

    Raises:
        TaskError: The task does not work.
        SpaceError: The blocks cannot be built, or do not fit the task.
        InputError: The layout or another setting does not fit the space or this machine.
    """
    config = context.config
    with deterministic(config.training.threads, config.training.device):
        supernet = build_supernet(context)
    check_task(context, supernet)
    warn_of_idle_stages(check_layout(context, watch))
    if config.retrain.processes > 1:
        # torch.distributed is imported only where it is used.
        from naspipe.training.distributed.requirements import check_retrain_processes

        check_retrain_processes(config)
    return supernet
