"""Resuming: what may differ when a run goes on, and what is a new run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from naspipe.components import build_components, contract_of
from naspipe.config.resolve import resolve_file
from naspipe.config.schema import RunConfig
from naspipe.environment import describe_environment
from naspipe.errors import RunFolderError
from naspipe.files import write_json, write_text, writing
from naspipe.planning import check_layout
from naspipe.runs.folder import RunFolder, create_folder
from naspipe.runs.progress import Watch, ignore
from naspipe.runs.run import Run

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
        ConfigError: An override is wrong.
    """
    run = Run.open(path, watch)
    before = run.config
    after, _ = resolve_file(run.folder.config, overrides)
    if fork is None:
        _refuse_differences(run.folder, before, after)
    if not run.folder.supernet.exists():
        _refuse_stale(run.folder, after)
        check_layout(after, build_components(after))
    if fork is not None:
        return Run(_fork(run.folder, after, Path(fork)), after, watch)
    if after != before:
        write_text(run.folder.config, after.to_yaml())
    return Run(run.folder, after, watch)


def _refuse_differences(folder: RunFolder, before: RunConfig, after: RunConfig) -> None:
    old, new = (dict(_flat(config.model_dump(mode="json"))) for config in (before, after))
    different = [key for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)]
    changed = [key for key in different if not key.startswith(FREE)]
    if changed:
        texts = [f"{key} was {old.get(key)!r} and would be {new.get(key)!r}" for key in changed]
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


def _refuse_stale(folder: RunFolder, config: RunConfig) -> None:
    """Raise an error if a training that was broken off cannot be gone on with exactly."""
    if not folder.training_metrics.exists():
        return
    contract = contract_of(config, build_components(config).executor)
    if contract.kind == "stale":
        raise RunFolderError(
            f"executor {config.executor.name!r} keeps the contract {contract}: subnets read weights that are being "
            "changed meanwhile, so no moment of its training is one that it could go on from exactly, and it writes no "
            f"checkpoints. Train anew: `{folder.retry}`."
        )


def _fork(source: RunFolder, config: RunConfig, target: Path) -> RunFolder:
    """Make a new run folder with a configuration, and a copy of what another has trained."""
    folder = create_folder(target, ())
    with writing(folder.root):
        if source.training_metrics.parent.exists():
            shutil.copytree(source.training_metrics.parent, folder.training_metrics.parent)
    write_text(folder.config, config.to_yaml())
    facts = describe_environment(config.seed, config.training.threads)
    write_json(folder.environment, {**facts, "forked from": str(source.root.resolve())})
    return folder


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
