"""``naspipe validate``: the run that a configuration describes."""

from __future__ import annotations

from naspipe.cli.output import say, watching
from naspipe.preflight.forecast import STAGES, SUBNETS, conflict_chance, forecast_speedups
from naspipe.preflight.layout import planning_without_profile
from naspipe.preflight.run_check import check_run
from naspipe.supernet.supernet import ALWAYS_ACTIVE
from naspipe.training.context import RunContext
from naspipe.training.planning import FLOPS, PROFILE, Planning
from naspipe.training.progress import Watch

DRAWS = 1_000
"""Subnets drawn to find the mean number of parameters."""


def show_validation(context: RunContext) -> None:
    """Print the resolved configuration, the sizes of space and supernet, and the splits of the data."""
    config, components = context.config, context.components
    with watching(data=True) as watch:
        supernet = check_run(context, watch)
        planning = _planning(context, watch)
    always = sum(layer.num_parameters for layer in supernet.layers() if layer.name == ALWAYS_ACTIVE)
    planning.start(components.sampler)
    sizes = [supernet.num_parameters(components.sampler.draw(index)) for index in range(DRAWS)]
    space = components.space
    rule = ", less the architectures that the validity rule refuses" if space.has_rule else ""
    lines = [
        ("Space", f"{space.size:,} architectures of {len(space.decisions)} decisions{rule}"),
        ("Supernet", f"{supernet.num_parameters():,} parameters in {len(supernet)} blocks"),
        ("Always active", f"{always:,} parameters"),
        ("Mean subnet", f"{sum(sizes) / DRAWS:,.0f} parameters over {DRAWS} draws of the sampler"),
        ("Data", ", ".join(f"{name} {count:,}" for name, count in context.splits.sizes().items())),
    ]
    say(config.to_yaml())
    for title, text in lines:
        say(f"{title:<14} {text}")
    _show_forecast(planning)
    say("The configuration is valid.")


def _planning(context: RunContext, watch: Watch) -> Planning:
    """Return the planning for a forecast, with FLOPs in place of costs that a run would measure."""
    config = context.config
    if config.executor.costs == PROFILE:
        executor = config.executor.model_copy(update={"costs": FLOPS})
        context = context.with_config(config.model_copy(update={"executor": executor}))
    return planning_without_profile(context, watch)


def _show_forecast(planning: Planning) -> None:
    """Print how often subnets conflict, and the speed-ups of a pipeline."""
    say(f"Conflicts      {conflict_chance(planning):.0%} of random pairs of subnets share a strict layer")
    delay = planning.config.training.delay
    say(f"Forecast       speed-up of csp over one stage, {SUBNETS} subnets, delay {delay}:")
    head = "".join(f"{f'{stages} stages':>11}" for stages in STAGES)
    say(f"  {'sampler':<9}micro-batches{head}")
    for row in forecast_speedups(planning):
        cells = "".join(f"{'-' if value is None else f'{value:.2f}':>11}" for value in row.speedups)
        say(f"  {row.sampler:<9}{row.microbatches:>13}{cells}")
