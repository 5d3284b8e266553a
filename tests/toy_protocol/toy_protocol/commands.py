"""`interlingua toys`: lists the agents of a server."""

from __future__ import annotations

from typing import Annotated

import typer

from interlingua.protocols.base import Command

EPILOG = "**Examples**\n\n`interlingua toys http://127.0.0.1:8000/toy`"


def add_toys(to: typer.Typer, command: Command) -> None:
    to.command(command.name, epilog=EPILOG, rich_help_panel=command.panel)(toys)


def toys(url: Annotated[str, typer.Argument(help="The address of the server.")]) -> None:
    """List the agents of a server that speaks the toy protocol."""
    import httpx2

    for agent in httpx2.get(f"{url}/agents").json()["agents"]:
        typer.echo(agent["name"])
