"""Exports: what is read back is what was written, bit for bit; what is not is an error."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TINY, Command, TinySpace
from torch import Tensor, nn

import naspipe
from naspipe import Block, Run
from naspipe.errors import ArchitectureError, InputError, RunError, RunFolderError
from naspipe.files import digest_tensors
from naspipe.runs.export import export_model, load_exported
from naspipe.search.evaluation import Evaluator, measure_split
from naspipe.supernet.block import BoundBlock

SMALL = {
    "training": {"subnets": 6, "batch_size": 10},
    "search": {"strategy": {"name": "random"}, "budget": {"trials": 2}, "batch_size": 16},
    "retrain": {"epochs": 1, "batch_size": 16},
}


def small_run(path: Path, **sections: Any) -> Run:
    run = Run.create({**copy.deepcopy(TINY), **copy.deepcopy(SMALL), "sampler": {"name": "uniform"}, **sections}, path)
    return run.train().search().retrain()


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The default space and task, trained for a moment."""
    overrides = [
        "training.subnets=6",
        "training.schedule.warmup=0",
        "search.strategy={name: random}",
        "search.budget.trials=2",
        "retrain.epochs=1",
    ]
    config = naspipe.load_config(Path(naspipe.__file__).parent / "examples" / "digits.yaml", overrides)
    return Run.create(config, tmp_path_factory.mktemp("export") / "run").train().search().retrain()


def batch(run: Run, count: int) -> Tensor:
    inputs: Tensor = run.splits.test.batch(range(count), 0).inputs
    return inputs


def same_outputs(one: nn.Module, other: nn.Module, inputs: Tensor) -> bool:
    with torch.no_grad():
        return torch.equal(one(inputs), other(inputs))


def test_a_state_dict_is_read_back_bit_for_bit(digits: Run) -> None:
    exported = export_model(digits)
    assert exported.path == digits.path / "export" / "model.safetensors"
    loaded, best = load_exported(exported.description), digits.best()
    assert not loaded.training
    assert digest_tensors(loaded.state_dict()) == digest_tensors(best.state_dict())
    assert same_outputs(loaded, best, batch(digits, 7))
    description = json.loads(exported.description.read_text())
    assert description["sha256"] == digest_tensors(best.state_dict())
    assert description["text"] == digits.best_metrics()["text"]
    assert description["inputs"] == [{"dtype": "torch.float32", "shape": ["batch", 1, 8, 8]}]
    assert len(description["configuration_sha256"]) == 64
    assert {path.name for path in exported.path.parent.glob("*safetensors*")} == {
        "model.safetensors", "model.safetensors.json",
    }  # fmt: skip


def test_a_traced_program_computes_the_same_bits_for_any_batch(digits: Run, tmp_path: Path) -> None:
    exported = export_model(digits, "torch.export", tmp_path / "here" / "best.pt2")
    assert exported.batch is None
    program = torch.export.load(exported.path).module()
    for count in (1, 4, 9):
        assert same_outputs(program, digits.best(), batch(digits, count))
        assert same_outputs(load_exported(exported.description), digits.best(), batch(digits, count))
    # It needs nothing of NASPipe.
    code = (
        f"import sys, torch; torch.export.load({str(exported.path)!r}).module(); "
        "sys.exit(any(name.startswith('naspipe') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_any_subnet_is_exported_as_the_search_saw_it(digits: Run, tmp_path: Path) -> None:
    text = digits.trials()[-1].architecture.to_json()
    exported = export_model(digits, "state_dict", tmp_path / "subnet.safetensors", text)
    assert exported.weights == "of the supernet, normalisation calibrated"
    trial = digits.trials()[-1]
    evaluator = Evaluator(digits.supernet(), digits.components.task, digits.splits, digits.config)
    loaded = load_exported(exported.description)
    assert digest_tensors(loaded.state_dict()) == digest_tensors(evaluator.subnet(trial.architecture).state_dict())
    metrics = measure_split(loaded, digits.components.task, digits.splits.validation, 256, "cpu")
    assert metrics["accuracy"] == trial.metrics["accuracy"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("onnx",), "there is no format 'onnx'. There are state_dict, torch.export."),
        (("torch_export",), "Did you mean 'torch.export'?"),
        (("torch.export", "model.pt"), "a file of format torch.export must end in .pt2, but is model.pt"),
        (("state_dict", "none.safetensors", "|none~0|"), "a cell must read like"),
    ],
)
def test_what_cannot_be_exported_is_refused(digits: Run, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises((InputError, ArchitectureError)) as refusal:
        export_model(digits, *arguments)
    assert message in str(refusal.value)


def test_an_export_overwrites_nothing(digits: Run, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_text("mine")
    with pytest.raises(InputError, match=r"an export overwrites nothing, but .*model.safetensors exists"):
        export_model(digits, "state_dict", path)
    assert path.read_text() == "mine"


def test_a_run_that_has_not_come_so_far_says_what_to_do(tmp_path: Path) -> None:
    run = Run.create({**copy.deepcopy(TINY), **SMALL, "sampler": {"name": "uniform"}}, tmp_path / "run")
    with pytest.raises(RunFolderError, match="has no retrained model yet: .* Run `naspipe retrain"):
        export_model(run)
    architecture = run.components.space.architecture({f"op{i}": "skip" for i in range(3)})
    with pytest.raises(RunFolderError, match="has no trained supernet yet"):
        export_model(run, architecture=architecture.to_json())
    assert not (tmp_path / "run" / "export").exists()


class Deciding(TinySpace):
    """Its head looks at values, which no trace can show."""

    def blocks(self) -> Iterator[nn.Module]:
        yield from list(super().blocks())[:-1]
        yield nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * self.width, 3), Decide())


class Decide(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum().item() > 0 else 2 * x


class Rowwise(TinySpace):
    """Its head walks over the samples, so that its batch size is a part of the trace."""

    def blocks(self) -> Iterator[nn.Module]:
        yield from list(super().blocks())[:-1]
        yield nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * self.width, 3), Rows())


class Rows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x[index].clone() for index in range(len(x))])


def test_a_model_that_cannot_be_traced_is_an_error_and_leaves_no_file(command: Command, tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", space={"name": "test_export:Deciding"})
    code, text, errors = command("export", run.path, "--format", "torch.export")
    assert code == 1
    assert errors.startswith(f"Opening {run.path}\nError: torch.export cannot trace the model: ")
    assert "tests/test_export.py:" in errors
    assert errors.endswith("Or export it with --format state_dict.\n")
    assert text == ""
    assert list((run.path / "export").iterdir()) == []
    assert same_outputs(load_exported(export_model(run).description), run.best(), batch(run, 5))


def test_a_fixed_batch_size_is_said(command: Command, tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", space={"name": "test_export:Rowwise"})
    code, text, errors = command("export", run.path, "--format", "torch.export")
    assert (code, errors) == (0, f"Opening {run.path}\n")
    assert "Batch         of 4 samples only" in text
    description = run.path / "export" / "model.pt2.json"
    assert json.loads(description.read_text())["inputs"][0]["shape"][0] == 4
    assert same_outputs(load_exported(description), run.best(), batch(run, 4))


def test_a_model_that_comes_back_otherwise_is_an_error(digits: Run, tmp_path: Path, monkeypatch: Any) -> None:
    from naspipe.runs import export

    def bend(module: nn.Module, path: Path) -> None:
        load(module, path)
        with torch.no_grad():
            next(module.parameters()).view(-1)[0] += 1

    load = export.load_weights
    monkeypatch.setattr(export, "load_weights", bend)
    with pytest.raises(RunError, match="the exported weights must be equal when they are read back"):
        export_model(digits, "state_dict", tmp_path / "model.safetensors")
    monkeypatch.setattr(export, "_first", lambda value: value)
    monkeypatch.setattr(export, "_bits", lambda outputs: object())
    with pytest.raises(RunError, match="must compute the same bits as the original module"):
        export_model(digits, "torch.export", tmp_path / "model.pt2")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_export_is_named(digits: Run, tmp_path: Path) -> None:
    exported = export_model(digits, "torch.export", tmp_path / "model.pt2")
    exported.path.write_bytes(b"no program")
    with pytest.raises(RunFolderError, match=r"model.pt2 cannot be read: .* Export it again."):
        load_exported(exported.description)
    exported.description.write_text("{}")
    with pytest.raises(RunFolderError, match=r"model.pt2.json cannot be read: format must be given"):
        load_exported(exported.description)


def test_the_command_prints_how_to_load_what_it_wrote(digits: Run, command: Command, tmp_path: Path) -> None:
    out = tmp_path / "best.safetensors"
    code, text, errors = command("export", digits.path, "--out", out)
    assert (code, errors) == (0, f"Opening {digits.path}\n")
    last = text.splitlines()[-1].removeprefix("To load it    ")
    assert last.startswith("python -c 'from naspipe.runs.export import load_exported")
    done = subprocess.run(last.replace("python", sys.executable, 1), shell=True, capture_output=True, text=True)
    assert done.stdout.startswith("Sequential("), done.stderr


def test_extracted_subnets_of_the_built_in_spaces_have_no_choices(digits: Run) -> None:
    for trial in digits.trials():
        subnet = digits.supernet().extract(trial.architecture)
        assert not [module for module in subnet.modules() if isinstance(module, (Block, BoundBlock))]
        assert sum(p.numel() for p in subnet.parameters()) == digits.supernet().num_parameters(trial.architecture)
