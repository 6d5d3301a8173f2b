"""``naspipe plugins``: the known plug-ins and their parameters."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.table import Table

from naspipe.config.parameters import REQUIRED, parameters_of, summary_of
from naspipe.errors import PluginError
from naspipe.registry import REGISTRIES, Registry, is_file_reference, registries_of


def show_plugins() -> None:
    """Print kind, name, origin and one line of every plug-in; one that fails says so on its line."""
    table = Table("Kind", "Name", "Origin", "Description", box=None, pad_edge=False)
    for registry in REGISTRIES:
        for plugin in registry.plugins():
            try:
                description = summary_of(registry.get(plugin.name))
            except PluginError as error:
                first, *rest = str(error).splitlines()
                last = f" {rest[-1].strip()}" if rest else ""
                description = f"{first}{last} (naspipe plugins {plugin.name} shows all of it)"
            table.add_row(plugin.kind, plugin.name, plugin.origin, description)
    console = Console()
    if not console.is_terminal:
        console = Console(width=240)  # Folded lines are of no use to whoever reads them through a pipe.
    console.print(table, markup=False)


def show_plugin(name: str) -> None:
    """Print the parameters of every plug-in of this name, or of a reference.

    Raises:
        PluginError: There is none, or it fails to import.
    """
    for registry in registries_of(name):
        if ":" not in name:
            origin = registry.find(name).origin
        else:
            origin = f"{'file' if is_file_reference(name) else 'module'} {registry.get(name).__module__}"
        _show_class(registry, name, origin)


def _show_class(registry: Registry, name: str, origin: str) -> None:
    cls = registry.get(name)
    typer.echo(f"{registry.kind} {name} ({origin})")
    typer.echo(f"  {summary_of(cls)}")
    parameters = parameters_of(cls)
    if not parameters:
        typer.echo("  It takes no parameters.")
    for parameter in parameters:
        default = "required" if parameter.default is REQUIRED else f"default {parameter.default!r}"
        typer.echo(f"  {parameter.name}: {parameter.type_text}, {default}")
        if parameter.description:
            typer.echo(f"      {parameter.description}")
