"""Resuming: what may differ when a run goes on, and what is a new run."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from naspipe.components import build_components, contract_of
from naspipe.config.resolve import resolve_file
from naspipe.config.schema import RunConfig
from naspipe.environment import describe_environment
from naspipe.errors import NaspipeWarning, RunFolderError
from naspipe.files import write_json, write_text, writing
from naspipe.planning import check_layout
from naspipe.runs.folder import RunFolder, create_folder
from naspipe.runs.progress import Watch, ignore
from naspipe.runs.run import Run
from naspipe.runs.settling import differences
from naspipe.runs.training import refuse_stale
from naspipe.training.checkpoint import CheckpointFolder

FREE = ("executor.", "search.workers")
"""Keys that change no result, as long as the executor keeps the same contract."""


def reopen(
    path: str | Path, overrides: Sequence[str] = (), fork: str | Path | None = None, watch: Watch = ignore
) -> Run:
    """Open a run's folder to go on in it, or in a copy.

    Args:
        path: The folder.
        overrides: Texts such as ``executor.stages=4``; they are kept in the run's configuration.
        fork: A new folder, which gets a copy of what has been trained; then anything may be overridden.
        watch: Called with the progress of each phase.

    Raises:
        RunFolderError: It is no run folder; something that changes results differs, or this machine does, and there
            is no fork; or nothing can go on exactly.
        InputError: The layout does not fit.
        ConfigError: An override is wrong.
    """
    run = Run.open(path, watch)
    before = run.config
    after, _ = resolve_file(run.folder.config, overrides)
    if fork is None:
        _refuse_differences(run.folder, before, after)
    if not run.folder.supernet.exists():
        refuse_stale(after, run.folder)
        # A layout that does not fit must not stay in the configuration.
        check_layout(after, build_components(after), run.splits).warn()
        if fork is not None:
            _refuse_to_go_on(run.folder, after)
    elif after.executor != before.executor:
        message = f"executor.* has no effect: it lays out supernet training, which {run.path} has behind it."
        warnings.warn(message, NaspipeWarning, stacklevel=2)
    if fork is not None:
        return Run(_fork(run.folder, after, Path(fork)), after, watch)
    if after != before:
        with run.folder.locked():
            write_text(run.folder.config, after.to_yaml())
    return Run(run.folder, after, watch, run.splits)


def _refuse_differences(folder: RunFolder, before: RunConfig, after: RunConfig) -> None:
    different = differences(before.model_dump(mode="json"), after.model_dump(mode="json"))
    texts = [
        f"{key} was {old!r} and would be {new!r}" for key, (old, new) in different.items() if not key.startswith(FREE)
    ]
    if texts:
        raise RunFolderError(
            f"a run goes on only with what its results depend on, but {'; '.join(texts)}. Leave that as it is, or let "
            f"a copy of the run go on: --fork NEW_RUN."
        )
    contracts = [contract_of(config, build_components(config).executor) for config in (before, after)]
    if contracts[0] != contracts[1] and not all(contract.allows_delay for contract in contracts):
        raise RunFolderError(
            f"a run goes on only under the same contract, but executor {before.executor.name!r} keeps {contracts[0]} "
            f"and {after.executor.name!r} keeps {contracts[1]}. Choose another executor, or --fork NEW_RUN."
        )
    _refuse_other_machine(folder, after)


def _refuse_other_machine(folder: RunFolder, config: RunConfig) -> None:
    """Raise an error if this machine may compute other bits than the one that the run began on."""
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
                f"a run goes on only where it gives the same bits, but {what} was {old} and is {new}. Go on where it "
                "began, or let a copy go on here: --fork NEW_RUN."
            )


def _refuse_to_go_on(folder: RunFolder, config: RunConfig) -> None:
    """Raise an error if a training cannot go on under a configuration that may be quite another one."""
    checkpoint = CheckpointFolder(folder.checkpoints).latest()
    if checkpoint is None:
        return
    if checkpoint.subnet > config.training.subnets:
        raise RunFolderError(
            f"a training goes on from its last checkpoint, before which {checkpoint.subnet:,} subnets have been "
            f"trained, but training.subnets is {config.training.subnets:,}. Raise it, or train anew."
        )
    components = build_components(config)
    try:
        components.sampler.start(components.space, config.seed)
        components.sampler.restore(checkpoint.sampler)
    except Exception as error:
        raise RunFolderError(
            f"a training goes on with the sampler that it has got to, but {config.sampler.name!r} cannot go on from "
            f"what was saved at subnet {checkpoint.subnet:,}: {type(error).__name__}: {error}. Keep the sampler, or "
            "train anew."
        ) from error


def _fork(source: RunFolder, config: RunConfig, target: Path) -> RunFolder:
    """Make a new run folder with a configuration, and a copy of what another has trained."""
    folder = create_folder(target, ())
    trained = source.training_metrics.parent
    with source.locked(), writing(folder.root):
        if trained.exists():
            shutil.copytree(trained, folder.training_metrics.parent, ignore=shutil.ignore_patterns(".*"))
    facts = describe_environment(config.seed, config.training.threads)
    write_json(folder.environment, {**facts, "forked from": str(source.root.resolve())})
    # What it was trained with may differ from what it goes on with.
    folder.training_settings.unlink(missing_ok=True)
    write_text(folder.config, config.to_yaml())
    return folder
