"""`interlingua serve`: agents on every door, on one port."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..app.logs import LogFormat
from .options import Store, Trace, examples

if TYPE_CHECKING:
    from ..app.serve import Server, ServeSettings
    from ..protocols.peer.settings import NodeSettings
    from ..security.tokens import Issuer

EPILOG = examples(
    "interlingua serve agents.py",
    "interlingua serve agents.py more.py --port 9000",
    "interlingua serve agents.py --host 0.0.0.0 --allow-host agents.example.org",
    "interlingua serve agents.py --issuer https://login.example.org --audience agents --log json",
)


def serve(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="TARGET...", help="What to serve: files with agents in them.", show_default=False),
    ],
    host: Annotated[
        str,
        typer.Option("--host", help="The address to listen on. Anything but loopback needs keys (interlingua keys)."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="The port; 0 takes any free one.")] = 8000,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", help="A Host header to accept beside the usual ones (repeatable)."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option("--allow-origin", help="A browser origin that may call (repeatable).")
    ] = None,
    issuer: Annotated[
        list[str] | None,
        typer.Option(
            "--issuer", metavar="URL", help="Accept tokens (JWT) of this issuer (repeatable).", show_default=False
        ),
    ] = None,
    audience: Annotated[
        list[str] | None,
        typer.Option(
            "--audience", metavar="NAME", help="What tokens call this server (repeatable).", show_default=False
        ),
    ] = None,
    jwks_url: Annotated[
        list[str] | None,
        typer.Option(
            "--jwks-url",
            metavar="URL",
            help="Where an issuer's keys are, in the order of --issuer; without it, where the issuer says they are.",
            show_default=False,
        ),
    ] = None,
    issuer_scope: Annotated[
        list[str] | None,
        typer.Option(
            "--issuer-scope",
            help="What callers may do whose tokens name no scopes of ours (repeatable; as in `keys add`).",
            show_default=False,
        ),
    ] = None,
    callback_secret: Annotated[
        str | None,
        typer.Option(
            "--callback-secret",
            envvar="INTERLINGUA_CALLBACK_SECRET",
            help="Sign callbacks with this.",
            show_default=False,
        ),
    ] = None,
    callback_hours: Annotated[
        float, typer.Option("--callback-hours", min=0, help="For how long a callback that fails is tried again.")
    ] = 24.0,
    peer_name: Annotated[
        str | None,
        typer.Option("--peer-name", metavar="NAME", help="What peers call this node.", show_default=False),
    ] = None,
    peer_port: Annotated[
        int | None,
        typer.Option(
            "--peer-port", min=0, max=65535, show_default=False,
            help="Where peers connect; 7801, or a free one where that is taken.",
        ),
    ] = None,
    peer_http_port: Annotated[
        int | None,
        typer.Option(
            "--peer-http-port", min=0, max=65535, show_default=False,
            help="The control API of the node; 7901, or a free one where that is taken.",
        ),
    ] = None,
    peer_config: Annotated[
        Path | None,
        typer.Option(
            "--peer-config", metavar="FILE", show_default=False,
            help="All that `interlingua peer` has flags for, as JSON or YAML.",
        ),
    ] = None,
    no_peer_ports: Annotated[
        bool, typer.Option("--no-peer-ports", help="Serve peers under `/peer` alone, without ports of their own.")
    ] = False,
    log: Annotated[
        LogFormat, typer.Option("--log", help="Runs, requests and trouble on stderr: as JSON lines, as text, or not.")
    ] = LogFormat.TEXT,
    access_log: Annotated[bool, typer.Option("--access-log", help="The same as `--log json`.")] = False,
    trace: Trace = None,
    store: Store = None,
) -> None:  # fmt: skip
    """Serve agents on every door: Agent Connect under `/connect`, Agent Client under `/editor`, MCP under `/mcp`, peers
    under `/peer` and on the ports of their protocol.

    Listens on loopback unless told otherwise; a public address without keys or issuers is refused. `/healthz`,
    `/readyz` and `/metrics` are there too. Ctrl-C stops: running agents are finished, or handed back to the next
    process.
    """
    from ..app.logs import logging_as
    from ..app.serve import ServeSettings
    from .session import go

    async def work() -> int:
        settings = ServeSettings(
            host=host,
            port=port,
            allowed_hosts=allow_host or [],
            allowed_origins=allow_origin or [],
            issuers=await _issuers(issuer or [], audience or [], jwks_url or [], issuer_scope or []),
            callback_secret=callback_secret,
            callback_retry=callback_hours * 3600,
            trace=trace,
            listeners=not no_peer_ports,
            options={"peer": _node(peer_config, peer_name, peer_port, peer_http_port)},
        )
        return await _serve(targets, settings, store, form)

    form = LogFormat.JSON if access_log else log
    with logging_as(form):
        go(work())


async def _serve(targets: list[str], settings: ServeSettings, store: Path | None, form: LogFormat) -> int:
    import asyncio
    import logging
    import signal

    from ..app.paths import default_store
    from ..app.serve import serving
    from ..app.targets import load_to_serve, parse

    agents = [agent for target in targets for agent in await load_to_serve(parse(target))]
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with serving(store or default_store(), agents, settings) as server:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        if form is LogFormat.JSON:  # whoever reads lines of JSON wants nothing else
            fields = {"address": server.address, "agents": [agent.card.key for agent in server.engine.agents]}
            logging.getLogger("interlingua").info("serving on %s", server.address, extra={"fields": fields})
        else:
            show(server)
            say("Ctrl-C stops.")
        await stop.wait()
        loop.remove_signal_handler(signal.SIGINT)  # a second Ctrl-C leaves at once
    return 0


def _node(config: Path | None, name: str | None, port: int | None, http_port: int | None) -> NodeSettings:
    import msgspec

    from ..app.peer import Flags, from_config, settings_of

    flags = from_config(config) if config is not None else Flags()
    given = {"name": name, "port": port, "http_port": http_port}
    return settings_of(msgspec.structs.replace(flags, **{key: one for key, one in given.items() if one is not None}))


async def _issuers(names: list[str], audiences: list[str], keys: list[str], scopes: list[str]) -> list[Issuer]:
    from ..app.issuers import issuer
    from .errors import CommandError

    if len(keys) > len(names):
        raise CommandError("there are more --jwks-url than --issuer", hint="each one belongs to an issuer, in order")
    if bool(names) is not bool(audiences):
        raise CommandError("--issuer and --audience belong together: a token is for somebody")
    places: list[str | None] = [*keys, *[None] * (len(names) - len(keys))]
    return [await issuer(name, audiences, at, scopes) for name, at in zip(names, places, strict=True)]


def show(server: Server) -> None:
    """The doors, the agents behind them, and a line to try for each."""
    from rich.table import Table

    from .render import error_console

    console = error_console()
    console.print(f"Serving on [bold]{server.address}[/bold]", markup=True)
    table = Table("door", "address", "agents", box=None, pad_edge=False)
    names = [f"{agent.card.name} {agent.card.version}" for agent in server.engine.agents]
    for protocol, _ in server.app.doors.values():
        table.add_row(protocol.title, server.address + protocol.prefix, ", ".join(names))
    console.print(table)
    for note in server.notes:
        say(note)
    for _, door in server.app.doors.values():
        for agent in server.engine.agents:
            say(f"$ {door.hint(server.address, agent.card.name)}")


def say(text: str) -> None:
    from .render import error_console

    error_console().print(text, soft_wrap=True, markup=False)
