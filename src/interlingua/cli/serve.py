"""`interlingua serve`: agents on every door, on one port."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Store, examples

if TYPE_CHECKING:
    from ..app.serve import Server

EPILOG = examples(
    "interlingua serve agents.py",
    "interlingua serve agents.py more.py --port 9000",
    "interlingua serve agents.py --host 0.0.0.0 --allow-host agents.example.org",
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
    callback_secret: Annotated[
        str | None,
        typer.Option(
            "--callback-secret",
            envvar="INTERLINGUA_CALLBACK_SECRET",
            help="Sign callbacks with this.",
            show_default=False,
        ),
    ] = None,
    access_log: Annotated[bool, typer.Option("--access-log", help="One line of JSON per request on stderr.")] = False,
    store: Store = None,
) -> None:
    """Serve agents on every door: the Agent Connect Protocol under `/connect`.

    Listens on loopback unless told otherwise; a public address without keys is refused. `/healthz`, `/readyz` and
    `/metrics` are there too. Ctrl-C stops: running agents are finished, or handed back to the next process.
    """
    from .session import go

    go(
        _serve(
            targets, host, port, allow_host or [], allow_origin or [], callback_secret, access_log, store
        )
    )  # fmt: skip


async def _serve(
    targets: list[str], host: str, port: int, hosts: list[str], origins: list[str], secret: str | None,
    access_log: bool, store: Path | None,
) -> int:  # fmt: skip
    import asyncio
    import signal

    from ..app.paths import default_store
    from ..app.serve import ServeSettings, serving
    from ..app.targets import load_to_serve, parse
    from .errors import CommandError

    if access_log:
        _log_access()
    agents = [agent for target in targets for agent in await load_to_serve(parse(target))]
    settings = ServeSettings(
        host=host, port=port, allowed_hosts=hosts, allowed_origins=origins, callback_secret=secret
    )  # fmt: skip
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    try:
        async with serving(store or default_store(), agents, settings) as server:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, stop.set)
            _show(server)
            await stop.wait()
    except SystemExit:  # what uvicorn does when the port is taken
        raise CommandError(f"port {port} of {host} is taken", hint="choose another one with --port") from None
    return 0


def _show(server: Server) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(stderr=True, highlight=False)
    console.print(f"Serving on [bold]{server.address}[/bold]", markup=True)
    table = Table("door", "address", "agents", box=None, pad_edge=False)
    names = [f"{agent.card.name} {agent.card.version}" for agent in server.engine.agents]
    for protocol, _ in server.app.doors.values():
        table.add_row(protocol.title, server.address + protocol.prefix, ", ".join(names))
    console.print(table)
    for _, door in server.app.doors.values():
        for agent in server.engine.agents:
            console.print(f"$ {door.hint(server.address, agent.card.name)}", soft_wrap=True, markup=False)
    console.print("Ctrl-C stops.")


def _log_access() -> None:
    import json
    import logging
    import sys

    class Line(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            fields = getattr(record, "fields", {})
            return json.dumps({"time": self.formatTime(record), **fields})

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Line())
    access = logging.getLogger("interlingua.access")
    access.addHandler(handler)
    access.setLevel(logging.INFO)
    access.propagate = False
