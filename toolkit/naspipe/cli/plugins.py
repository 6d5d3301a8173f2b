"""The commands of ``naspipe plugins``, and the tables of plug-ins and of their parameters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from naspipe.errors import PluginError
from naspipe.registry import REGISTRIES, is_file_reference, registries_of

if TYPE_CHECKING:
    from naspipe.registry import Registry

# Everything else is imported within the commands, so that --help is quick.


class _NameOrCommand(TyperGroup):
    """A group in which a word that is no command is a plug-in's name: ``plugins NAME``, ``plugins check NAME``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            args = ["show", *args]
        return super().parse_args(ctx, args)


plugins = typer.Typer(cls=_NameOrCommand, invoke_without_command=True, subcommand_metavar="[NAME | check PLUGIN]")


@plugins.callback()
def list_plugins(context: typer.Context) -> None:
    """List the known plug-ins, show the parameters of one, or check one."""
    if context.invoked_subcommand is None:
        _show_plugins()


@plugins.command(name="show", hidden=True)
def show_plugin(name: Annotated[str, typer.Argument(metavar="NAME", help="A plug-in.")]) -> None:
    """Show the parameters of a plug-in."""
    for registry in registries_of(name):
        if ":" not in name:
            origin = registry.find(name).origin
        else:
            origin = f"{'file' if is_file_reference(name) else 'module'} {registry.get(name).__module__}"
        _show_class(registry, name, origin)


@plugins.command(name="check")
def check_plugin(
    plugin: Annotated[
        str | None,
        typer.Argument(metavar="PLUGIN", help="Name or file.py:Class; parameters as in gpipe:bulk=4."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="The task whose batches a space or an objective gets; as above.  [default: digits]"),
    ] = None,
    inputs: Annotated[
        str | None, typer.Option(metavar="SHAPE", help="Run a space on noise of this shape, as in 3,32,32.")
    ] = None,
    space: Annotated[
        str | None, typer.Option(help="The space that a task, an objective, a sampler or a strategy is checked with.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A run's YAML that gives task and space; without PLUGIN all of its plug-ins.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A parameter; may be repeated.")
    ] = None,
) -> None:
    """Check a plug-in of any kind and print each verdict; ends with 1 if something does not hold."""
    from naspipe.cli.conformance import show_conformance

    if not show_conformance(plugin, overrides or [], task, inputs, space, config):
        raise typer.Exit(1)


def _show_plugins() -> None:
    """Print kind, name, origin and one line of every plug-in, or the error of one that fails."""
    from naspipe.cli.output import show_table
    from naspipe.config.parameters import summary_of
    from naspipe.report.table import Table

    table = Table(("Kind", "Name", "Origin", "Description"))
    for registry in REGISTRIES:
        for plugin in registry.plugins():
            try:
                description = summary_of(registry.get(plugin.name))
            except PluginError as error:
                first, *rest = str(error).splitlines()
                last = f" {rest[-1].strip()}" if rest else ""
                description = f"{first}{last} (naspipe plugins {plugin.name} shows all of it)"
            table.add(plugin.kind, plugin.name, plugin.origin, description)
    show_table(table)


def _show_class(registry: Registry, name: str, origin: str) -> None:
    from naspipe.cli.output import say
    from naspipe.config.parameters import REQUIRED, parameters_of, summary_of

    cls = registry.get(name)
    say(f"{registry.kind} {name} ({origin})")
    say(f"  {summary_of(cls)}")
    parameters = parameters_of(cls)
    if not parameters:
        say("  It takes no parameters.")
    for parameter in parameters:
        default = "required" if parameter.default is REQUIRED else f"default {parameter.default!r}"
        say(f"  {parameter.name}: {parameter.type_text}, {default}")
        if parameter.description:
            say(f"      {parameter.description}")
