"""The commands of ``naspipe plugins``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

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
        from naspipe.cli.plugins import show_plugins

        show_plugins()


@plugins.command(name="show", hidden=True)
def show_plugin(name: Annotated[str, typer.Argument(metavar="NAME", help="A plug-in.")]) -> None:
    """Show the parameters of a plug-in."""
    from naspipe.cli.plugins import show_plugin

    show_plugin(name)


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
    """Check a plug-in of any kind and print what holds and what does not; ends with 1 if something does not."""
    from naspipe.cli.conformance import show_conformance

    if not show_conformance(plugin, overrides or [], task, inputs, space, config):
        raise typer.Exit(1)
