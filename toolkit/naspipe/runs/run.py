"""Run: a run folder and its phases; what the command line calls."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from naspipe.components import Components, as_config, build_components
from naspipe.config.resolve import resolve_file
from naspipe.config.schema import RunConfig
from naspipe.environment import describe_environment
from naspipe.errors import InputError, RunError, RunFolderError
from naspipe.files import (
    JsonLines,
    digest_tensors,
    load_tensors,
    read_json,
    read_lines,
    save_tensors,
    write_json,
    write_text,
)
from naspipe.runs.folder import RunFolder, create_folder
from naspipe.runs.progress import Progress, Watch, ignore
from naspipe.search.evaluation import Evaluator, count_parameters, measure_split
from naspipe.search.loop import run_search
from naspipe.search.retraining import EpochRecord, retrain
from naspipe.search.trial import Trial, pareto_front
from naspipe.space import Architecture
from naspipe.supernet.supernet import Supernet, build_subnet
from naspipe.tasks.data import Splits
from naspipe.training.determinism import deterministic
from naspipe.training.loop import SubnetRecord, SupernetTrainer


class Run:
    """One run: its folder, and the phases train, search, retrain and report.

    ``naspipe.run`` goes through all of them. Each phase reads what the one before left in the folder, so
    they can be called in separate processes.
    """

    def __init__(
        self,
        folder: RunFolder,
        config: RunConfig,
        watch: Watch = ignore,
        splits: Splits | None = None,
        untrained: Supernet | None = None,
    ) -> None:
        """Use ``Run.create`` or ``Run.open``."""
        self.folder = folder
        self.config = config
        self._watch = watch
        self._splits = splits
        self._untrained = untrained

    @classmethod
    def create(
        cls,
        config: RunConfig | str | Path | Mapping[str, Any],
        out: str | Path | None = None,
        watch: Watch = ignore,
    ) -> Run:
        """Make the folder of a new run.

        Args:
            config: A configuration, the path of one, or a mapping of the same shape.
            out: The folder, which must not exist; by default a new one below ``runs/``.
            watch: Called with the progress of each phase.

        Raises:
            ConfigError: The configuration is wrong; no folder is made.
            TaskError: The data is missing; no folder is made.
            SpaceError: The blocks cannot be built; no folder is made.
            RunFolderError: The folder exists.
        """
        resolved = as_config(config)
        _refuse_stages(resolved)
        name = f"{_word(resolved.space.name)}-{_word(resolved.task.name)}"
        # Before the folder is made, so that missing data or a broken space leaves nothing behind.
        components = build_components(resolved)
        splits = components.task.load(resolved.seed)
        untrained = Supernet(components.space, resolved.seed)
        folder = create_folder(Path(out) if out is not None else None, name)
        run = cls(folder, resolved, watch, splits, untrained)
        write_text(folder.config, resolved.to_yaml())
        write_json(folder.environment, describe_environment(resolved.seed, resolved.training.threads))
        return run

    @classmethod
    def open(cls, path: str | Path, watch: Watch = ignore) -> Run:
        """Open the folder of an earlier run.

        Args:
            path: The folder.
            watch: Called with the progress of each phase.

        Raises:
            RunFolderError: It is no run folder.
            ConfigError: A plug-in that the run uses cannot be found any more.
        """
        folder = RunFolder(Path(path))
        if not folder.config.is_file():
            raise RunFolderError(f"{path} is no run folder: there is no {folder.config.name} in it.")
        config, _ = resolve_file(folder.config)
        return cls(folder, config, watch)

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder.root

    @cached_property
    def components(self) -> Components:
        """The run's plug-ins; used to look at, since samplers and strategies serve one phase."""
        return build_components(self.config)

    @property
    def splits(self) -> Splits:
        """The task's data, loaded when first asked for."""
        if self._splits is None:
            self._splits = self.components.task.load(self.config.seed)
        return self._splits

    @property
    def digest(self) -> str:
        """SHA-256 of the trained supernet: names, types, shapes and bits of its weights.

        Raises:
            RunFolderError: The supernet has not been trained.
        """
        self._require_supernet()
        return digest_tensors(load_tensors(self.folder.supernet))

    def train(self) -> Run:
        """Train the supernet and save it; returns the run.

        Raises:
            RunFolderError: It has been trained, or its training was broken off.
            TrainingError: It cannot go on.
        """
        self.folder.refuse(self.folder.supernet, "a trained supernet")
        _refuse_stages(self.config)
        self.folder.refuse(self.folder.training_metrics, "the log of a training that was broken off")
        config = self.config
        components = build_components(config)
        with self._computing():
            supernet = self._untrained or Supernet(components.space, config.seed)
            self._untrained = None  # This phase trains it in place.
            trainer = SupernetTrainer(
                supernet,
                components.task,
                self.splits.train,
                components.sampler,
                components.executor,
                config.training,
                config.seed,
                config.executor.window,
            )
            with JsonLines(self.folder.training_metrics) as log:

                def on_subnet(record: SubnetRecord) -> None:
                    log.append(
                        {
                            "index": record.index,
                            "architecture": dict(record.architecture),
                            "loss": record.loss,
                            "lr": record.lr,
                        }
                    )
                    detail = f"loss {record.loss:.4f}"
                    self._watch(Progress("train", record.index + 1, config.training.subnets, detail))

                trainer.run(on_subnet)
            save_tensors(self.folder.supernet, supernet.blocks.state_dict(), {"format": "pt"})
        return self

    def search(self) -> Run:
        """Search the trained supernet and name the best architecture; returns the run.

        A search that was broken off goes on where it stopped: what has been evaluated is looked up.

        Raises:
            RunFolderError: The supernet has not been trained, or the search has finished.
            SearchError: Every trial failed.
        """
        self._require_supernet()
        self.folder.refuse(self.folder.best_architecture, "a finished search")
        config = self.config
        components = build_components(config)
        budget = config.search.budget.trials
        known = self.trials()
        with self._computing():
            evaluator = Evaluator(self.supernet(), components.task, self.splits, config)
            with JsonLines(self.folder.trials) as log:

                def on_trial(trial: Trial) -> None:
                    log.append(trial.to_record(components.space))
                    self._watch(Progress("search", trial.index + 1, budget, self._describe(trial)))

                result = run_search(
                    components.space,
                    components.strategy,
                    components.objectives,
                    budget,
                    evaluator.evaluate,
                    on_trial,
                    known,
                )
        if result.note:
            self._watch(Progress("search", len(result.trials), len(result.trials), result.note))
        best = pareto_front(result.trials, components.objectives)[0]
        write_json(self.folder.best_architecture, best.to_record(components.space))
        return self

    def retrain(self) -> Run:
        """Train the best architecture as an ordinary module, save, reload and test it; returns the run.

        The test split is touched here, once, after everything else.

        Raises:
            RunFolderError: The search has not finished, or this has been done.
            TrainingError: It cannot go on.
            RunError: The saved model does not evaluate as the trained one did.
        """
        self._require_best()
        self.folder.refuse(self.folder.best_metrics, "a retrained model")
        config, components = self.config, self.components
        architecture = self.best_architecture()
        # Left by a retraining that was broken off; it starts anew and gives the same again.
        self.folder.retraining_metrics.unlink(missing_ok=True)
        with self._computing():
            if config.retrain.init == "inherit":
                module = self.supernet().extract(architecture)
            else:
                module = build_subnet(components.space, architecture, config.seed)
            with JsonLines(self.folder.retraining_metrics) as log:

                def on_epoch(record: EpochRecord) -> None:
                    log.append({"epoch": record.epoch, "loss": record.loss, "lr": record.lr})
                    detail = f"loss {record.loss:.4f}"
                    done = record.epoch + 1
                    self._watch(Progress("retrain", done, config.retrain.epochs, detail))

                retrain(
                    module,
                    components.task,
                    self.splits.train,
                    config.retrain,
                    config.seed,
                    config.training.device,
                    on_epoch,
                )
            validation = self._measure(module, "validation")
            save_tensors(self.folder.best_model, module.state_dict(), {"format": "pt"})
            reloaded = self._load_best()
            again = self._measure(reloaded, "validation")
            if again != validation:
                raise RunError(
                    f"the model saved in {self.folder.best_model} must evaluate as it did when trained, "
                    f"{validation}, but gives {again}. It has state that its state_dict does not hold."
                )
            test = self._measure(reloaded, "test")
        write_json(
            self.folder.best_metrics,
            {
                "text": components.space.format(architecture),
                "validation": validation,
                "test": test,
                "parameters": count_parameters(reloaded),
            },
        )
        return self

    def report(self) -> Path:
        """Write ``report.html`` from what the run has so far; returns its path."""
        from naspipe.report.page import write_report

        return write_report(self)

    def best(self) -> nn.Module:
        """Return the retrained best subnet, an ordinary module in evaluation mode, on the CPU.

        Raises:
            RunFolderError: It has not been retrained.
        """
        self.folder.require(self.folder.best_metrics, "retrained model", f"naspipe retrain {self.path}")
        return self._load_best("cpu")

    def best_architecture(self) -> Architecture:
        """Return the architecture that the search found best.

        Raises:
            RunFolderError: The search has not finished.
        """
        self._require_best()
        record = read_json(self.folder.best_architecture)
        return self.components.space.architecture(Architecture(record["architecture"]))

    def best_metrics(self) -> dict[str, Any]:
        """Return the retrained subnet's scores: text, validation, test and parameters.

        Raises:
            RunFolderError: It has not been retrained.
        """
        self.folder.require(self.folder.best_metrics, "retrained model", f"naspipe retrain {self.path}")
        metrics: dict[str, Any] = read_json(self.folder.best_metrics)
        return metrics

    def trials(self) -> list[Trial]:
        """Return the trials so far, in order."""
        space = self.components.space
        return [Trial.from_record(record, space) for record in read_lines(self.folder.trials)]

    def supernet(self) -> Supernet:
        """Return the trained supernet, on the run's device.

        Raises:
            RunFolderError: It has not been trained, or belongs to another space.
        """
        self._require_supernet()
        supernet = Supernet(self.components.space, self.config.seed)
        _load_state(supernet.blocks, self.folder.supernet)
        return supernet.to(self.config.training.device)

    def _load_best(self, device: str | None = None) -> nn.Module:
        module = build_subnet(self.components.space, self.best_architecture(), self.config.seed)
        _load_state(module, self.folder.best_model)
        return module.to(device or self.config.training.device).eval()

    def _measure(self, module: nn.Module, split: str) -> dict[str, float]:
        metrics = measure_split(
            module,
            self.components.task,
            getattr(self.splits, split),
            self.config.search.batch_size,
            self.config.training.device,
        )
        return {name: float(value) for name, value in metrics.items()}

    def _describe(self, trial: Trial) -> str:
        if trial.reason is not None:
            return f"failed: {trial.reason}"
        return ", ".join(f"{o.name} {trial.metrics[o.name]:.6g}" for o in self.components.objectives)

    def _computing(self) -> contextlib.AbstractContextManager[None]:
        return deterministic(self.config.training.threads, self.config.training.device)

    def _require_supernet(self) -> None:
        command = "naspipe train CONFIG"
        self.folder.require(self.folder.supernet, "trained supernet", command)

    def _require_best(self) -> None:
        command = f"naspipe search {self.path}"
        self.folder.require(self.folder.best_architecture, "best architecture", command)


def run(
    config: RunConfig | str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    watch: Watch = ignore,
) -> Run:
    """Train a supernet, search it, retrain the best subnet and write the report.

    Args:
        config: A configuration, the path of one, or a mapping of the same shape.
        out: The run's folder, which must not exist; by default a new one below ``runs/``.
        watch: Called with the progress of each phase.

    Returns:
        The finished run.

    Raises:
        ConfigError: The configuration is wrong; nothing was started.
        RunError: A phase failed; what was computed before is in the folder.
    """
    new = Run.create(config, out, watch)
    new.train().search().retrain().report()
    return new


def _refuse_stages(config: RunConfig) -> None:
    """Refuse what can be planned but not run yet.

    Raises:
        InputError: More than one stage, or segments.
    """
    section = config.executor
    if section.stages > 1 or section.segments > 1:
        raise InputError(
            f"training runs on one stage in one segment so far, but executor.stages is {section.stages} and "
            f"executor.segments is {section.segments}. `naspipe plan` shows the schedule; to train, set "
            "both to 1."
        )


def _load_state(module: nn.Module, path: Path) -> None:
    try:
        module.load_state_dict(load_tensors(path))
    except RuntimeError as error:
        raise RunFolderError(
            f"the weights in {path} must fit the run's search space, but: {error}"
        ) from error


def _word(name: str) -> str:
    """Return a plug-in's name as part of a folder's name."""
    return name.rpartition(":")[2] or name
