"""Export: one subnet of a run as a file, read back and compared with the original module."""

from __future__ import annotations

import contextlib
import hashlib
import io
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree  # flattens any nest; torch offers no public one

from naspipe import registry
from naspipe.config.resolve import construct
from naspipe.errors import InputError, RunError, RunFolderError
from naspipe.files import digest_tensors, read_json, replacing, save_tensors, write_json
from naspipe.records import ExportDescription
from naspipe.results.view import RunView, load_weights
from naspipe.search.evaluation import Evaluator
from naspipe.space import Architecture, SearchSpace
from naspipe.supernet.determinism import deterministic
from naspipe.supernet.supernet import build_subnet
from naspipe.wording import listing, nearest

SUFFIXES = {"state_dict": ".safetensors", "torch.export": ".pt2"}
"""The formats and the suffixes of their files."""

SAMPLES = 4
"""Number of samples on which the read-back module is compared with the original."""

ADVICE = "It is the description that `naspipe export` writes beside a model; export it again."


@dataclass(frozen=True)
class Exported:
    """The result of an export.

    Attributes:
        path: The model's file.
        description: The JSON beside it: architecture, space, configuration and how to load it.
        text: The architecture, for people.
        weights: Origin of the weights.
        batch: The only batch size that the model takes, or None: it takes any.
    """

    path: Path
    description: Path
    text: str
    weights: str
    batch: int | None

    @property
    def quoted_load(self) -> str:
        """Python code that loads the model, quoted for a command line."""
        code = f"from naspipe.runs.export import load_exported; print(load_exported({str(self.description)!r}))"
        return shlex.quote(code)


def export_model(
    run: RunView, form: str = "state_dict", out: str | Path | None = None, architecture: str | None = None
) -> Exported:
    """Write a subnet to a file, read it back and compare it bit for bit.

    Args:
        run: A run whose best subnet has been retrained; with ``architecture``, a run with a trained supernet.
        form: The format: ``state_dict`` writes safetensors, ``torch.export`` the traced program.
        out: The file, which must not exist; by default one below ``export/`` in the run's folder.
        architecture: Text of an architecture, which gets the supernet's weights, calibrated as in the search; by
            default the retrained best subnet.

    Returns:
        Paths and description of the files.

    Raises:
        InputError: The format is unknown, the file exists or has another suffix, or the architecture is not valid.
        RunFolderError: The run is not trained or retrained yet.
        RunError: The model cannot be traced, is not equal after it is read back, or a file cannot be written.
    """
    if form not in SUFFIXES:
        raise InputError(f"there is no format {form!r}.{nearest(form, SUFFIXES)} There are {listing(SUFFIXES)}.")
    path = Path(out) if out is not None else run.path / "export" / f"model{SUFFIXES[form]}"
    description = path.with_name(f"{path.name}.json")
    if path.suffix != SUFFIXES[form]:
        raise InputError(f"a file of format {form} must end in {SUFFIXES[form]}, but is {path}.")
    for file in (path, description):
        if file.exists():
            raise InputError(f"an export overwrites nothing, but {file} exists. Give another file with --out.")
    with deterministic(run.config.training.threads, run.config.training.device):
        module, chosen, weights = _choose(run, architecture)
        example = run.splits.validation.batch(list(range(min(SAMPLES, len(run.splits.validation)))), key=0).inputs
        with replacing(path) as temporary:
            if form == "state_dict":
                batch = None
                _write_weights(run, module, chosen, temporary, example)
            else:
                batch = _write_program(module, temporary, example)
    text = run.components.space.format(chosen)
    load = "naspipe.runs.export.load_exported(this file)"
    write_json(
        description,
        {
            "format": form,
            "file": path.name,
            "load": load if form == "state_dict" else f"{load}, or torch.export.load({path.name!r}).module()",
            "text": text,
            "architecture": dict(chosen),
            "weights": weights,
            "sha256": digest_tensors(module.state_dict()),
            "space": run.config.space.model_dump(mode="json"),
            "inputs": _form(example, batch),
            "configuration_sha256": hashlib.sha256(run.config.to_yaml().encode()).hexdigest(),
            "versions": {"naspipe": version("naspipe"), "torch": torch.__version__},
        },
    )
    return Exported(path, description, text, weights, batch)


def load_exported(path: str | Path) -> nn.Module:
    """Return an exported model, ready to run.

    Args:
        path: The JSON that ``export_model`` wrote beside the model.

    Returns:
        From a state_dict an ordinary module in evaluation mode; from a traced program that program's module.

    Raises:
        RunFolderError: A file is missing or damaged, or the search space has changed.
        ConfigError: The search space cannot be found any more.
    """
    description: ExportDescription = read_json(Path(path), ExportDescription.model_validate, ADVICE)
    file = Path(path).with_name(description.file)
    if description.format == "torch.export":
        try:
            return torch.export.load(file).module()
        except Exception as error:
            raise RunFolderError(f"{file} cannot be read: {type(error).__name__}: {error}. Export it again.") from error
    values = {key: value for key, value in description.space.items() if key != "name"}
    space: SearchSpace = construct(registry.spaces, description.space["name"], values)
    return _load_weights(space, space.architecture(Architecture(description.architecture)), file)


def _choose(run: RunView, text: str | None) -> tuple[nn.Module, Architecture, str]:
    """Return the module to export, on the CPU, its architecture, and the origin of its weights."""
    if text is None:
        return run.best(), run.retrained_architecture(), "of the retrained best subnet"
    architecture = run.components.space.parse(text)
    evaluator = Evaluator(run.supernet(), run.components.task, run.splits, run.config)
    return evaluator.subnet(architecture).to("cpu"), architecture, "of the supernet, normalisation calibrated"


def _write_weights(run: RunView, module: nn.Module, architecture: Architecture, path: Path, example: Any) -> None:
    save_tensors(path, module.state_dict(), {"format": "pt"})
    loaded = _load_weights(run.components.space, architecture, path)
    if digest_tensors(loaded.state_dict()) != digest_tensors(module.state_dict()):
        raise RunError("the exported weights must be equal when they are read back, but are not.")
    _compare(module, loaded, example)


def _load_weights(space: SearchSpace, architecture: Architecture, path: Path) -> nn.Module:
    module = build_subnet(space, architecture, 0)
    load_weights(module, path)
    return module.eval()


def _write_program(module: nn.Module, path: Path, example: Any) -> int | None:
    """Trace a module and write the program; return its only batch size, or None: it takes any."""
    try:
        _trace(module, path, example, torch.export.Dim("batch"))
        _compare(module, torch.export.load(path).module(), example)
        _compare(module, torch.export.load(path).module(), pytree.tree_map(_first, example))
        return None
    except Exception:
        # Some modules compute with their batch size; then it is fixed.
        try:
            _trace(module, path, example, None)
        except Exception as error:
            first, *rest = str(error).strip().splitlines() or ["no reason given"]
            cause = "".join(f" {line}" for line in rest if line.startswith("Caused by"))
            raise RunError(
                f"torch.export cannot trace the model: {type(error).__name__}: {first}{cause}. Its forward must "
                "consist of tensor operations that do not depend on values. Or export it with --format state_dict."
            ) from None
    _compare(module, torch.export.load(path).module(), example)
    return len(next(leaf for leaf in pytree.tree_leaves(example) if isinstance(leaf, Tensor)))


def _trace(module: nn.Module, path: Path, example: Any, batch: Any) -> None:
    shapes = None
    if batch is not None:
        shapes = (pytree.tree_map(lambda value: {0: batch} if isinstance(value, Tensor) else None, example),)
    # If it fails, torch prints a part of a program.
    with contextlib.redirect_stderr(io.StringIO()):
        program = torch.export.export(module, (example,), dynamic_shapes=shapes)
    torch.export.save(program, path)


def _first(value: Any) -> Any:
    return value[:1] if isinstance(value, Tensor) else value


def _compare(module: nn.Module, loaded: Callable[[Any], Any], inputs: Any) -> None:
    """Raise an error unless two modules give the same bits for a batch."""
    with torch.no_grad():
        expected, found = (_bits(one(inputs)) for one in (module, loaded))
    if expected != found:
        raise RunError(
            "the exported model must compute the same bits as the original module, but does not. The module has state "
            "that the file does not hold. Nothing has been written."
        )


def _bits(outputs: Any) -> tuple[str, str]:
    leaves, structure = pytree.tree_flatten(outputs)
    tensors = {str(number): leaf for number, leaf in enumerate(leaves) if isinstance(leaf, Tensor)}
    return str(structure), digest_tensors(tensors)


def _form(example: Any, batch: int | None) -> list[dict[str, Any]]:
    """Return type and shape of every input tensor."""
    return [
        {"dtype": str(leaf.dtype), "shape": ["batch" if batch is None else batch, *leaf.shape[1:]]}
        for leaf in pytree.tree_leaves(example)
        if isinstance(leaf, Tensor)
    ]
