"""``naspipe validate``: what a configuration would run."""

from __future__ import annotations

import typer

from naspipe.components import build_components
from naspipe.config.schema import RunConfig
from naspipe.supernet.supernet import ALWAYS_ACTIVE, Supernet

DRAWS = 1_000
"""Subnets drawn to find the mean number of parameters."""


def show_validation(config: RunConfig) -> None:
    """Print the resolved configuration, the sizes of space and supernet, and the splits of the data."""
    components = build_components(config)
    splits = components.task.load(config.seed)
    supernet = Supernet(components.space, config.seed)
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
    typer.echo("The configuration is valid.")
