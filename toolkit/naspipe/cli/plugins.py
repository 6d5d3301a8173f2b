"""``naspipe plugins``: the known plug-ins and their parameters."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.table import Table

from naspipe.config.parameters import REQUIRED, parameters_of, summary_of
from naspipe.errors import PluginError
from naspipe.registry import REGISTRIES, Registry, is_file_reference
from naspipe.suggestions import listing, nearest


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
    if ":" in name:
        _show_reference(name)
        return
    owners = [registry for registry in REGISTRIES if name in registry.names()]
    if not owners and name.endswith(".py"):
        raise PluginError(f"a plug-in in a file is named by file and class, as in {name}:Class.")
    if not owners:
        known = sorted({known for registry in REGISTRIES for known in registry.names()})
        raise PluginError(f"there is no plug-in {name!r}.{nearest(name, known)} Known: {listing(known)}.")
    for registry in owners:
        _show_class(registry, name, registry.find(name).origin)


def _show_reference(name: str) -> None:
    for registry in REGISTRIES:
        try:
            cls = registry.get(name)
        except PluginError as error:
            if "must be a subclass" in str(error):
                continue
            raise
        origin = "file" if is_file_reference(name) else "module"
        _show_class(registry, name, f"{origin} {cls.__module__}")
        return
    bases = listing(f"naspipe.{registry.base.__name__}" for registry in REGISTRIES)
    raise PluginError(f"{name} is no plug-in: its class must be a subclass of one of {bases}.")


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
