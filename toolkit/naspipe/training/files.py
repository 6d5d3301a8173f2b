"""The files of a supernet's training, in a run's folder or in a temporary folder."""

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
        """The log: a line for each subnet with index, architecture, loss and lr."""
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
        """The trained supernet's weights; exists once the training has finished."""
        return self.root / "supernet.safetensors"

    @property
    def trace(self) -> Path:
        """A plan's file with the measured times and the versions of every action; only of a traced training."""
        return self.root / "trace.json"

    @property
    def plan(self) -> Path:
        """The plan of a traced training."""
        return self.root / "plan.json"

    @property
    def costs(self) -> Path:
        """The measured costs of the blocks, if the configuration asks for them."""
        return self.root / "costs.json"

    def stage(self, stage: int) -> Path:
        """Return the file of a stage's weights, which exists until all stages have ended."""
        return self.root / f"stage{stage}.safetensors"

    def subnets(self) -> Iterator[SubnetLine]:
        """Yield the log's line of every trained subnet."""
        return read_lines(self.metrics, SubnetLine.model_validate, "Only the report needs this line: delete it.")

    def remove_stages(self) -> None:
        """Remove the files of all stages' weights."""
        for path in self.root.glob("stage*.safetensors"):
            path.unlink()
