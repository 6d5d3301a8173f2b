"""Every example runs from end to end, at about a tenth of its length; benchmarks/examples.py runs them whole."""

from __future__ import annotations

import pydoc_data.topics
from pathlib import Path

import pytest

import naspipe
from naspipe.errors import TaskError

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SHORT = ["search.budget.trials=3", "search.strategy={name: random}", "retrain.epochs=1", "training.schedule.warmup=5"]
IMAGES = ["task.train_samples=2000", "task.validation=0.01"]
OVERRIDES = {
    "custom": ["training.subnets=20"],
    "digits": ["training.subnets=150"],
    "nasbench201": ["training.subnets=80", "space.channels=4", *IMAGES],
    "nni": ["training.subnets=100", *IMAGES],
    "resnet": ["training.subnets=80", "retrain.schedule.warmup=5", *IMAGES],
    "tabular": ["training.subnets=10"],
    "vit": ["training.subnets=120"],
    "transformer_lm": ["training.subnets=40", "task.text=english.txt"],
    "transformer_seq2seq": ["training.subnets=30", "task.source=english.txt", "task.target=reversed.txt"],
}


def test_every_example_is_tried() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == set(OVERRIDES)


@pytest.mark.parametrize("name", OVERRIDES)
def test_an_example_runs_from_end_to_end(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked_processes: None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NASPIPE_CACHE", str(tmp_path))
    lines = [line for topic in pydoc_data.topics.topics.values() for line in topic.splitlines() if len(line) > 40][:500]
    Path("english.txt").write_text("\n".join(lines) + "\n")
    Path("reversed.txt").write_text("\n".join(" ".join(reversed(line.split())) for line in lines) + "\n")
    config = naspipe.load_config(EXAMPLES / f"{name}.yaml", [*SHORT, *OVERRIDES[name]])
    try:
        run = naspipe.run(config, "run")
    except TaskError as error:
        if "dataset-fashion-mnist" in str(error):
            pytest.skip("Debian's dataset-fashion-mnist is not installed")
        raise
    assert run.best_metrics()["test"]["loss"] > 0
    assert run.folder.report.is_file()
