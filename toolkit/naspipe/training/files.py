"""The files of a supernet's training, in a run's folder or in a temporary one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from naspipe.files import read_lines
from naspipe.records import SubnetLine


@dataclass(frozen=True)
class TrainingFiles:
    """The paths of a training's files.

    Attributes:
        root: The folder of all of them.
    """

    root: Path

    @property
    def metrics(self) -> Path:
        """A line per subnet: index, architecture, loss, lr."""
        return self.root / "metrics.jsonl"

    @property
    def settings(self) -> Path:
        """The settings that the result depends on, as they were when the training began."""
        return self.root / "settings.json"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints; removed once the training has finished."""
        return self.root / "checkpoints"

    @property
    def stop_request(self) -> Path:
        """Exists while the training is asked to stop."""
        return self.root / ".stop"

    @property
    def supernet(self) -> Path:
        """The trained supernet's weights; there once the training has finished."""
        return self.root / "supernet.safetensors"

    @property
    def trace(self) -> Path:
        """A plan's file with the measured times of every action and the versions it saw; if it was asked for."""
        return self.root / "trace.json"

    @property
    def plan(self) -> Path:
        """The plan that a traced training followed."""
        return self.root / "plan.json"

    @property
    def costs(self) -> Path:
        """The measured costs of the blocks, if the plan was made from those."""
        return self.root / "costs.json"

    def stage(self, stage: int) -> Path:
        """Return where the process of a stage leaves its weights until all have ended."""
        return self.root / f"stage{stage}.safetensors"

    def subnets(self) -> Iterator[SubnetLine]:
        """Yield what was logged of every trained subnet."""
        return read_lines(self.metrics, SubnetLine.model_validate, "Only the report needs this line: delete it.")

    def remove_stages(self) -> None:
        """Remove the weights that stages have left, in whatever number."""
        for path in self.root.glob("stage*.safetensors"):
            path.unlink()
