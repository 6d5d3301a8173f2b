"""The fingerprint of a phase: the settings that its result depends on, which must not change on resume."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from naspipe.errors import RunFolderError
from naspipe.files import read_json, write_json
from naspipe.results.folder import RunFolder
from naspipe.training.context import RunContext

TRAINING_SECTIONS = {"seed", "space", "task", "training", "sampler"}
"""Sections of the configuration that the training depends on; of the executor, only the contract matters."""

FREE_SEARCH_KEYS = {"budget", "workers"}
"""Keys of ``search`` that may differ when a search is resumed."""

FREE_RETRAIN_KEYS = {"init", "seeds", "best"}
"""Keys of ``retrain`` that decide which rows exist; they may differ when a retraining is resumed."""


@dataclass(frozen=True)
class Fingerprint:
    """The settings that a phase's result depends on.

    Attributes:
        phase: The phase, for messages: ``a training``.
        path: The file that keeps the settings.
        settings: Their present values.
        remedy: What to do if they have changed, as a sentence.
        section: The section of the configuration that holds all keys, or an empty text.
    """

    phase: str
    path: Path
    settings: Mapping[str, Any]
    remedy: str
    section: str = ""

    def check(self, has_begun: bool) -> None:
        """Keep the settings when the phase begins; when it is resumed, refuse different ones.

        If no settings were kept, as in a fork, any may differ.

        Args:
            has_begun: Whether the phase began in an earlier process.

        Raises:
            RunFolderError: A setting has changed.
        """
        if not has_begun:
            write_json(self.path, self.settings)
        elif self.path.exists():
            advice = f"Delete it if nothing has changed since {self.phase.removeprefix('a ')} began."
            changed = differences(read_json(self.path, dict, advice), self.settings)
            if changed:
                prefix = f"{self.section}." if self.section else ""
                texts = [f"{prefix}{key} was {old!r} and is {new!r}" for key, (old, new) in changed.items()]
                raise RunFolderError(
                    f"{self.phase} is resumed only with the settings that it began with, but {'; '.join(texts)}. "
                    f"{self.remedy}"
                )


def training_fingerprint(context: RunContext, folder: RunFolder) -> Fingerprint:
    """Return the fingerprint of a run's supernet training."""
    settings = {
        **context.config.model_dump(mode="json", include=TRAINING_SECTIONS),
        "contract": context.contract.equal_runs or str(context.contract),
    }
    remedy = f"Undo the change in {folder.config}, or resume a copy of the run: {folder.fork}"
    return Fingerprint("a training", folder.training.settings, settings, remedy)


def search_fingerprint(context: RunContext, folder: RunFolder) -> Fingerprint:
    """Return the fingerprint of a run's search."""
    search = context.config.search.model_dump(mode="json")
    settings = {
        "decisions": {
            decision.name: {
                "options": [repr(option) for option in decision.options],
                "parent": decision.parent,
                "parent_options": [repr(option) for option in decision.parent_options],
            }
            for decision in context.components.space.decisions
        },
        "search": {key: value for key, value in search.items() if key not in FREE_SEARCH_KEYS},
    }
    remedy = f"Undo the change, or search in a new run: `{folder.retry}`."
    return Fingerprint("a search", folder.search_settings, settings, remedy)


def retrain_fingerprint(context: RunContext, folder: RunFolder) -> Fingerprint:
    """Return the fingerprint of a run's retraining: the settings that all of its rows have in common."""
    retrain = context.config.retrain.model_dump(mode="json")
    settings = {key: value for key, value in retrain.items() if key not in FREE_RETRAIN_KEYS}
    remedy = f"Undo the change, or delete {folder.retraining} to train all rows again."
    return Fingerprint("a retraining", folder.retraining_settings, settings, remedy, "retrain")


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return both values of each key that differs, by its dotted path; None stands for a missing key."""
    old, new = dict(_flat(before)), dict(_flat(after))
    return {key: (old.get(key), new.get(key)) for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
