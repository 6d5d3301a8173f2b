"""The typed schema of a run's configuration.

``space``, ``task``, ``training``, ``sampler``, ``search`` and ``retrain`` hold every setting that may change a result.
``executor`` only distributes the work. Every default is fixed; none depends on the hardware.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from naspipe.config.source import dump_yaml

PositiveInt = Annotated[int, Field(ge=1)]
NaturalInt = Annotated[int, Field(ge=0)]

DEFAULT_TRIALS = 64
"""The budget of a search that sets none."""


class Section(BaseModel):
    """A part of the configuration: strict types, no unknown keys, immutable."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class PluginConfig(BaseModel):
    """A plug-in by name, with its parameters beside it."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    name: str = Field(description="A registered name, file.py:Class or package.module:Class.")

    @property
    def parameters(self) -> dict[str, Any]:
        """Every key but the name."""
        return dict(self.model_extra or {})


class ScheduleConfig(Section):
    """The learning rate over the run, as a factor on the optimizer's ``lr``."""

    name: Literal["constant", "linear", "cosine"] = Field(
        default="cosine", description="The curve of the factor from 1 after the warm-up to `final` at the end."
    )
    warmup: NaturalInt = Field(default=0, description="Steps over which the factor rises linearly to 1.")
    final: float = Field(default=0.0, ge=0, le=1, description="The factor at the end; not for constant.")


class OptimizationConfig(Section):
    """The settings that training and retraining have in common."""

    batch_size: PositiveInt = Field(default=64, description="Samples in a batch.")
    optimizer: PluginConfig = Field(
        default=PluginConfig.model_validate({"name": "SGD", "lr": 0.05, "momentum": 0.9}),
        description="A torch.optim class by name, with its arguments.",
    )
    schedule: ScheduleConfig = Field(default=ScheduleConfig(), description="The learning rate over the run.")


class TrainingConfig(OptimizationConfig):
    """Supernet training."""

    subnets: PositiveInt = Field(default=2000, description="Subnets to train; subnet y is trained on batch y.")
    microbatches: PositiveInt = Field(default=1, description="Micro-batches into which a batch is split.")
    delay: NaturalInt | None = Field(
        default=None,
        description="Updates by which reads of always-active layers lag behind; 0 is strict order. By default 8, "
        "or null where the executor's contract governs all layers.",
    )
    freeze_always_active: bool = Field(
        default=False,
        description="Leave always-active layers (stem, head, embeddings) at their initial weights; no delay is needed.",
    )
    clip_norm: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Largest gradient norm of a layer, or null: no clipping."
    )
    precision: Literal["fp32", "bf16"] = Field(
        default="fp32", description="Precision of supernet training; bf16 is torch's autocast, with weights in fp32."
    )
    on_nonfinite: Literal["stop", "skip"] = Field(
        default="stop",
        description="If the loss of a subnet is not finite: end the run, or skip the subnet's update.",
    )
    threads: PositiveInt = Field(default=1, description="Threads of torch, in every phase of the run.")
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="Device of every phase of the run.")


class CheckpointConfig(Section):
    """When supernet training writes checkpoints."""

    every: PositiveInt | None = Field(default=500, description="Subnets between two checkpoints, or null: no limit.")
    minutes: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Minutes between two checkpoints at most, or null: no limit."
    )
    keep: PositiveInt = Field(default=2, description="Number of checkpoints to keep.")


class ExecutorConfig(Section):
    """How the work is distributed over devices; within one contract it changes no bit of the result."""

    name: str = Field(default="sequential", description="A registered executor, or a reference to one.")
    stages: PositiveInt = Field(default=1, description="Pipeline stages.")
    segments: PositiveInt = Field(default=1, description="Segments in which a stage runs its blocks.")
    partition: Literal["static", "balanced"] | list[PositiveInt] = Field(
        default="static",
        description="Blocks of each stage: static (balanced once, for the expected cost), balanced (for each subnet), "
        "or the numbers of blocks.",
    )
    costs: str = Field(
        default="uniform",
        description="Costs of blocks in the plan: uniform, flops, profile (measured at the start of training), or the "
        "file of a cost table.",
    )
    window: PositiveInt | None = Field(
        default=None, description="Subnets in flight at most, or null: the executor's default."
    )
    transport: Literal["in-process", "distributed"] = Field(
        default="in-process", description="All stages in one process, or one process for each stage."
    )
    backend: Literal["auto", "gloo", "nccl"] = Field(
        default="auto", description="The backend of torch.distributed; auto: nccl between GPUs, else gloo."
    )
    recompute: bool = Field(
        default=False,
        description="Activation checkpointing: keep only the input of each block, and run it again in the backward.",
    )
    timeout: PositiveInt = Field(
        default=300, description="Seconds that a process waits for another one before it gives up."
    )
    checkpoint: CheckpointConfig = Field(default=CheckpointConfig(), description="When training writes checkpoints.")
    restarts: NaturalInt = Field(
        default=0, description="How often training in several processes resumes by itself after one has failed."
    )
    options: dict[str, Any] = Field(default={}, description="The executor's own parameters.")


class BudgetConfig(Section):
    """When a search ends: at the first limit that it reaches; after 64 trials if no limit is set."""

    trials: PositiveInt | None = Field(default=None, description="Architectures to evaluate, or null: no such limit.")
    generations: PositiveInt | None = Field(
        default=None, description="Generations of the strategy, or null: no such limit."
    )
    seconds: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Time after which no generation begins, over all resumes, or null: no such limit."
    )

    @model_validator(mode="before")
    @classmethod
    def _default(cls, data: Any) -> Any:
        if isinstance(data, dict) and not any(data.get(name) is not None for name in cls.model_fields):
            return {**data, "trials": DEFAULT_TRIALS}
        return data


class LatencyConfig(Section):
    """How the measure ``latency`` takes the time."""

    batch_size: PositiveInt = Field(default=1, description="Samples in a forward.")
    warmup: NaturalInt = Field(default=5, description="Forwards that are not counted.")
    repeats: PositiveInt = Field(default=20, description="Forwards of which the median is taken.")


class SearchConfig(Section):
    """The search over the trained supernet."""

    strategy: PluginConfig = Field(
        default=PluginConfig(name="evolution"), description="The strategy, which proposes architectures."
    )
    budget: BudgetConfig = Field(
        default=BudgetConfig(trials=DEFAULT_TRIALS), description="When the search ends: at the first limit it reaches."
    )
    objectives: Annotated[list[str], Field(min_length=1)] = Field(
        default=["accuracy"],
        description="Metrics of the task, or measures such as parameters and flops; the first orders the Pareto front.",
    )
    constraints: list[str] = Field(
        default=[], description="Conditions on measures, such as flops<=1e6, which every trial satisfies."
    )
    workers: PositiveInt = Field(default=1, description="Processes that evaluate; their number changes no result.")
    latency: LatencyConfig = Field(default=LatencyConfig(), description="How the measure latency takes the time.")
    batch_size: PositiveInt = Field(default=256, description="Samples in a batch of evaluation.")
    calibration_batches: PositiveInt = Field(
        default=4, description="Training batches that calibrate normalisation before an evaluation."
    )


Init = Literal["scratch", "inherit", "finetune"]
"""The initial weights of a retrained module: fresh ones, or the supernet's, which only ``finetune`` trains."""


def _differ(inits: list[Init]) -> list[Init]:
    if len(set(inits)) != len(inits):
        raise ValueError("must name each of them once")
    return inits


# A discriminated union, so that a message is about one of the two types only.
Inits = Annotated[
    Annotated[Init, Tag("one")] | Annotated[list[Init], Field(min_length=1), AfterValidator(_differ), Tag("several")],
    Discriminator(lambda value: "several" if isinstance(value, list) else "one"),
]


class RetrainConfig(OptimizationConfig):
    """Training of the best architectures as ordinary modules."""

    epochs: PositiveInt = Field(default=20, description="Passes over the training split.")
    init: Inits = Field(
        default="scratch",
        description="scratch: fresh weights, trained; inherit: the supernet's weights, not trained, normalisation "
        "calibrated; finetune: the supernet's weights, trained. One of them, or a list.",
    )
    seeds: PositiveInt = Field(
        default=1, description="Trainings of each architecture and init, with seeds derived from the run's."
    )
    best: PositiveInt = Field(default=1, description="Number of the best architectures that are retrained.")
    processes: PositiveInt = Field(
        default=1,
        description="Data-parallel processes. Each takes a share of every batch, so their number changes results.",
    )
    clip_norm: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Largest gradient norm of the whole module, or null: no clipping."
    )

    @property
    def inits(self) -> tuple[Init, ...]:
        """All values of ``init``, in order."""
        return tuple(self.init) if isinstance(self.init, list) else (self.init,)


class RunConfig(Section):
    """The configuration of one run."""

    seed: NaturalInt = Field(default=0, description="The seed of every random draw.")
    space: PluginConfig = Field(description="The search space and its parameters.")
    task: PluginConfig = Field(description="The task and its parameters.")
    training: TrainingConfig = Field(default=TrainingConfig(), description="Supernet training.")
    sampler: PluginConfig = Field(
        default=PluginConfig(name="uniform"), description="The order in which subnets are trained."
    )
    executor: ExecutorConfig = Field(default=ExecutorConfig(), description="How the work is distributed.")
    search: SearchConfig = Field(default=SearchConfig(), description="The search over the supernet.")
    retrain: RetrainConfig = Field(default=RetrainConfig(), description="Training of the best architectures.")

    def to_yaml(self) -> str:
        """Return the configuration as YAML; reading that gives an equal configuration."""
        return dump_yaml(self.model_dump(mode="json"))
