"""``naspipe validate``: what a configuration would run."""

from __future__ import annotations

import typer

from naspipe.checks import check_task
from naspipe.components import build_components
from naspipe.config.schema import RunConfig
from naspipe.forecast import STAGES, SUBNETS, conflict_chance, forecast_speedups
from naspipe.planning import Planning, prepare_planning, without_measuring
from naspipe.supernet.supernet import ALWAYS_ACTIVE, Supernet

DRAWS = 1_000
"""Subnets drawn to find the mean number of parameters."""


def show_validation(config: RunConfig) -> None:
    """Print the resolved configuration, the sizes of space and supernet, and the splits of the data."""
    components = build_components(config)
    freeze = config.training.freeze_always_active
    supernet = Supernet(components.space, config.seed, freeze_always_active=freeze)
    splits = check_task(components, config, supernet)
    always = sum(layer.num_parameters for layer in supernet.layers() if layer.name == ALWAYS_ACTIVE)
    sizes = [supernet.num_parameters(components.sampler.draw(index)) for index in range(DRAWS)]
    space = components.space
    rule = ", less those that the validity rule refuses" if space.has_rule else ""
    lines = [
        ("Space", f"{space.size:,} architectures of {len(space.decisions)} decisions{rule}"),
        ("Supernet", f"{supernet.num_parameters():,} parameters in {len(supernet)} blocks"),
        ("Always active", f"{always:,} parameters"),
        ("Mean subnet", f"{sum(sizes) / DRAWS:,.0f} parameters over {DRAWS} draws of the sampler"),
        ("Data", ", ".join(f"{name} {count:,}" for name, count in splits.sizes().items())),
    ]
    typer.echo(config.to_yaml())
    for title, text in lines:
        typer.echo(f"{title:<14} {text}")
    # A forecast needs no measurement: FLOPs tell the costs well enough.
    _show_forecast(prepare_planning(without_measuring(config, "flops"), components, splits))
    typer.echo("The configuration is valid.")


def _show_forecast(planning: Planning) -> None:
    """Print what a pipeline would bring."""
    typer.echo(f"Conflicts      {conflict_chance(planning):.0%} of random pairs of subnets share a strict layer")
    delay = planning.config.training.delay
    typer.echo(f"Forecast       speed-up of csp over one stage, {SUBNETS} subnets, delay {delay}:")
    head = "".join(f"{f'{stages} stages':>11}" for stages in STAGES)
    typer.echo(f"  {'sampler':<9}micro-batches{head}")
    for row in forecast_speedups(planning):
        cells = "".join(f"{'-' if value is None else f'{value:.2f}':>11}" for value in row.speedups)
        typer.echo(f"  {row.sampler:<9}{row.microbatches:>13}{cells}")
