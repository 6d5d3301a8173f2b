"""Resuming: what may differ when a run is resumed, and what makes it a new run."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from naspipe.config.resolve import EXECUTOR, construct
from naspipe.config.schema import RunConfig
from naspipe.environment import describe_environment
from naspipe.errors import NaspipeWarning, RunFolderError
from naspipe.files import write_json, write_text, writing
from naspipe.preflight.layout import check_layout, warn_of_idle_stages
from naspipe.results.folder import RunFolder
from naspipe.results.view import read_run
from naspipe.runs.fingerprint import differences
from naspipe.runs.lock import locked
from naspipe.runs.new_folder import create_folder
from naspipe.runs.run import Run
from naspipe.runs.train_phase import refuse_without_checkpoints
from naspipe.training.checkpoint import CheckpointFolder
from naspipe.training.components import contract_of, start_again
from naspipe.training.context import RunContext
from naspipe.training.progress import Watch, ignore

FREE = ("executor.", "search.workers")
"""Keys that change no result, as long as the executor keeps the same contract."""


def reopen(
    path: str | Path, overrides: Sequence[str] = (), fork: str | Path | None = None, watch: Watch = ignore
) -> Run:
    """Open a run to resume it, in its folder or in a copy.

    Args:
        path: The folder.
        overrides: Texts such as ``executor.stages=4``; they change the run's configuration.
        fork: A new folder, which gets a copy of the training so far; then any setting may be overridden.
        watch: Called with the progress of each phase.

    Raises:
        RunFolderError: It is no run folder; or a setting that changes results, or this machine, differs and there is
            no fork; or the training cannot be resumed exactly.
        InputError: The layout does not fit.
        ConfigError: An override is wrong.
    """
    folder, before = read_run(path)
    context = RunContext.load(folder.config, overrides)
    after = context.config
    if fork is None:
        _refuse_differences(folder, before, context)
    if not folder.supernet.exists():
        refuse_without_checkpoints(context, folder)
        # A layout that does not fit must not stay in the configuration.
        warn_of_idle_stages(check_layout(context, watch))
        if fork is not None:
            _refuse_other_checkpoint(folder, context)
    elif after.executor != before.executor:
        message = f"executor.* has no effect: it lays out supernet training, which {folder.root} has finished."
        warnings.warn(message, NaspipeWarning, stacklevel=2)
    if fork is not None:
        return Run(_fork(folder, after, Path(fork)), context, watch)
    if after != before:
        with locked(folder.root):
            write_text(folder.config, after.to_yaml())
    return Run(folder, context, watch)


def _refuse_differences(folder: RunFolder, before: RunConfig, context: RunContext) -> None:
    """Raise an error if a configuration differs from the run's in a setting that changes results."""
    after = context.config
    different = differences(before.model_dump(mode="json"), after.model_dump(mode="json"))
    texts = [
        f"{key} was {old!r} and would be {new!r}" for key, (old, new) in different.items() if not key.startswith(FREE)
    ]
    if texts:
        raise RunFolderError(
            f"a run is resumed only with the settings that its results depend on, but {'; '.join(texts)}. Leave that "
            "as it is, or resume a copy of the run: --fork NEW_RUN."
        )
    if before.executor != after.executor:
        executor = construct(EXECUTOR.registry, before.executor.name, before.executor.options)
        old, new = contract_of(before, executor), context.contract
        if old != new and not (old.allows_delay and new.allows_delay):
            raise RunFolderError(
                f"a run is resumed only under the same contract, but executor {before.executor.name!r} keeps {old} "
                f"and {after.executor.name!r} keeps {new}. Choose another executor, or --fork NEW_RUN."
            )
    _refuse_other_machine(folder, after)


def _refuse_other_machine(folder: RunFolder, config: RunConfig) -> None:
    """Raise an error if this machine may compute other bits than the machine on which the run began."""
    then, now = folder.facts(), describe_environment(config.seed, config.training.threads)
    places: list[tuple[str, Any, Any]] = [
        ("torch", then.get("packages", {}).get("torch"), now["packages"]["torch"]),
        ("the CPU's capability", then.get("cpu", {}).get("capability"), now["cpu"]["capability"]),
    ]
    if config.training.device == "cuda":
        places.append(("the GPU", *(facts.get("gpus", [None])[:1] for facts in (then, now))))
    for what, old, new in places:
        if old is not None and old != new:
            raise RunFolderError(
                f"a run is resumed only where it gives the same bits, but {what} was {old} and is {new}. Resume it "
                "where it began, or resume a copy here: --fork NEW_RUN."
            )


def _refuse_other_checkpoint(folder: RunFolder, context: RunContext) -> None:
    """Raise an error if a copy's configuration does not fit the checkpoint from which it is resumed."""
    config, components = context.config, context.components
    checkpoint = CheckpointFolder(folder.training.checkpoints).latest()
    if checkpoint is None:
        return
    if checkpoint.subnet > config.training.subnets:
        raise RunFolderError(
            f"a training is resumed from its last checkpoint, before which {checkpoint.subnet:,} subnets have been "
            f"trained, but training.subnets is {config.training.subnets:,}. Raise it, or train anew."
        )
    try:
        start_again(components.sampler, components.space, config.seed)
        components.sampler.restore(checkpoint.sampler)
    except Exception as error:
        raise RunFolderError(
            f"a training is resumed with the state of its sampler, but {config.sampler.name!r} cannot continue from "
            f"the state saved at subnet {checkpoint.subnet:,}: {type(error).__name__}: {error}. Keep the sampler, or "
            "train anew."
        ) from error


def _fork(source: RunFolder, config: RunConfig, target: Path) -> RunFolder:
    """Make a new run folder with a configuration and a copy of another run's training."""
    folder = create_folder(target, ())
    trained, files = source.training.root, folder.training
    with locked(source.root), writing(folder.root):
        if trained.exists():
            shutil.copytree(trained, files.root, ignore=shutil.ignore_patterns(".*"))
    facts = describe_environment(config.seed, config.training.threads)
    write_json(folder.environment, {**facts, "forked from": str(source.root.resolve())})
    # The settings of the training so far may differ from those of the fork.
    files.settings.unlink(missing_ok=True)
    write_text(folder.config, config.to_yaml())
    return folder
