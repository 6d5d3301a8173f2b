"""What a training depends on: noted when it begins, compared when it goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from naspipe.components import build_components, contract_of
from naspipe.config.schema import RunConfig
from naspipe.errors import RunFolderError
from naspipe.files import read_json, write_json
from naspipe.runs.folder import RunFolder

SECTIONS = {"seed", "space", "task", "training", "sampler"}
"""Of the configuration; of the executor, the contract counts."""


def settle_training(config: RunConfig, folder: RunFolder) -> None:
    """Note what a training depends on when it begins; when it goes on, refuse what has changed.

    Raises:
        RunFolderError: Something has, in the configuration's file.
    """
    contract = contract_of(config, build_components(config).executor)
    settings = {
        **config.model_dump(mode="json", include=SECTIONS),
        "contract": "sequential" if contract.allows_delay else str(contract),
    }
    if not folder.training_metrics.exists():
        write_json(folder.training_settings, settings)
        return
    if not folder.training_settings.exists():
        return  # A copy, in which anything may differ.
    advice = "Delete it if nothing has changed since the training began."
    changed = differences(read_json(folder.training_settings, dict, advice), settings)
    if changed:
        texts = [f"{key} was {old!r} and is {new!r}" for key, (old, new) in changed.items()]
        raise RunFolderError(
            f"a training goes on only as it began, but in {folder.config} {'; '.join(texts)}. Undo the change, or let "
            f"a copy of the run go on: naspipe resume {folder.quoted} --fork NEW_RUN"
        )


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return both values of each key that differs, by its dotted path; None where one lacks it."""
    old, new = dict(_flat(before)), dict(_flat(after))
    return {key: (old.get(key), new.get(key)) for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
