"""`interlingua serve`: agents on every door, on one port."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..flags import given
from ..options import ConfigFile, examples
from ..serve_loop import named, say, say_rows, show_mounts, stay

if TYPE_CHECKING:
    from pathlib import Path

    from ...engine.agents.agent import Agent
    from ...server.app import Server
    from ...server.config.load import Config
    from ...server.logs import LogFormat
    from ...server.mounts.entry import MountEntry
    from ...server.project import Project

EPILOG = (
    examples(
        "interlingua serve agents.py",
        "interlingua serve agents.py more.py --port 9000",
        "interlingua serve --config interlingua.toml",
        "interlingua serve --mount connect+http://other:8000/connect --reload",
        "interlingua serve agents.py --host 0.0.0.0 --allow-host agents.example.org",
        "interlingua serve agents.py --issuer https://login.example.org --audience agents --log json",
    )
    + "\n\nEvery option is also a key of `interlingua.toml` and a variable: `--limits-max-running` is `max_running` in "
    "`[limits]`, and `INTERLINGUA_LIMITS_MAX_RUNNING`. `interlingua config show` tells what is in force."
)


def serve(
    ctx: typer.Context,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TARGET",
            help="Files with agents, `team:DIR`, or mounts. By default those of the config file; with `--store`, those "
            "of the store's workers.",
            show_default=False,
        ),
    ] = None,
    config: ConfigFile = None,
    access_log: Annotated[bool, typer.Option("--access-log", help="The same as `--log json`.")] = False,
) -> None:  # fmt: skip
    """Serve agents over every protocol, at one address.

    Each protocol has a door: Agent Connect under `/connect`, Agent Client under `/editor`, MCP under `/mcp`, CAP under
    `/cap`, and peers under `/peer` and at ports of their own. `--door` serves only those that it names.

    The server listens on loopback by default, and refuses a public address without keys or issuers. It also answers
    `/healthz`, `/readyz`, `/metrics` and `/mounts`. SIGHUP reloads agents, teams and mounts, and ends no run. Ctrl-C
    stops the server: running agents finish, or their runs go back to the next process.
    """
    flags = given(ctx)
    if access_log:
        flags["server_log"] = "json"
    stay(config, targets or [], flags, "serve", _open, _show)


async def _open(
    config: Config, store: Path | str, project: Project, agents: list[Agent[..., Any]], mounts: list[MountEntry]
) -> AbstractAsyncContextManager[Server]:
    from ...server.app import serving
    from ...server.config import build

    settings = await build.serve_settings(config)
    config.check()
    return serving(store, agents, settings, mounts, project=project.claim(store), root=project.root)


def _show(server: Server, form: LogFormat) -> None:
    import logging

    from ...server.logs import LogFormat

    if form is not LogFormat.JSON:
        show(server)
        return
    fields = {
        "address": server.address,
        "store": server.store,
        "doors": {name: server.address + door.prefix for name, (door, _) in server.app.doors.items()},
        "agents": [agent.card.key for agent in server.engine.agents],
        "notes": server.notes,  # the link that peers connect to is in no other place
    }
    logging.getLogger("interlingua").info("serving on %s", server.address, extra={"fields": fields})


def show(server: Server) -> None:
    """The doors, the agents behind them, and a line to try for each door."""
    from ...server.paths import nearby
    from ...terminal.console import error_console

    console = error_console()
    console.print(f"Serving on [bold]{server.address}[/bold]", markup=True, soft_wrap=True)
    told = named(server)
    rows = [(protocol.title, server.address + protocol.prefix, told) for protocol, _ in server.app.doors.values()]
    say_rows(("door", "address", "agents"), rows)
    show_mounts(server)
    say(f"store: {nearby(server.store)}")
    for note in server.notes:
        say(note)
    for agent in list(server.engine.agents)[:1]:
        for protocol, door in server.app.doors.values():
            say(f"$ {door.hint(server.address + protocol.prefix, agent.card)}")
