"""`interlingua relay`: a relay of one's own, for peers that cannot reach each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...cli.options import examples

if TYPE_CHECKING:
    from ..base import Command
    from .relay.app import RelaySettings

EPILOG = examples(
    "interlingua relay",
    "interlingua relay --host 0.0.0.0 --port 443 --tls-cert cert.pem --tls-key key.pem",
    "interlingua relay --public-host relay.example.org --sessions 2000",
)


def add_relay(to: typer.Typer, command: Command) -> None:
    to.command(command.name, epilog=EPILOG, rich_help_panel=command.panel)(relay)


def relay(
    host: Annotated[
        str, typer.Option("--host", help="The address to listen on; 0.0.0.0 for peers on other machines.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="The port; 0 takes any free one.")] = 7950,
    public_host: Annotated[
        str | None,
        typer.Option(
            "--public-host", metavar="HOST[:PORT]", help="The host in links, behind a proxy that speaks TLS.",
            show_default=False,
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="Serve by TLS.", show_default=False)
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option("--tls-key", metavar="FILE", help="The key of the certificate.", show_default=False),
    ] = None,
    sessions: Annotated[int, typer.Option("--sessions", min=1, help="How many there are at most.")] = 500,
    sessions_per_address: Annotated[
        int, typer.Option("--sessions-per-address", min=1, help="How many of them are of one address.")
    ] = 50,
    messages: Annotated[int, typer.Option("--messages", min=1, help="Messages that one session holds.")] = 200,
    message_bytes: Annotated[
        int, typer.Option("--message-bytes", min=1024, help="The largest message, with all that is around it.")
    ] = 3 * 1024 * 1024,
    total_bytes: Annotated[
        int, typer.Option("--total-bytes", min=1024, help="What all sessions hold together.")
    ] = 512 * 1024 * 1024,
    ttl: Annotated[float, typer.Option("--ttl", min=1, help="Seconds that an unused session is kept.")] = 3600.0,
) -> None:  # fmt: skip
    """Run a relay for peers that cannot connect directly.

    Peers leave messages for each other at a relay.

    Whoever knows the token of a session may read and write it, and nobody can find a token out: sessions are not
    listed. All is in memory, within limits. Without TLS, use it on this machine or behind a proxy. Ctrl-C stops.
    """
    from ...terminal.errors import CommandError
    from ...terminal.session import go
    from .relay.server import RelaySettings

    if tls_key is not None and tls_cert is None:
        raise CommandError("--tls-key belongs to a --tls-cert")
    for option, file in (("--tls-cert", tls_cert), ("--tls-key", tls_key)):
        if file is not None and not file.is_file():
            raise CommandError(f"{option}: there is no file {file}")
    settings = RelaySettings(
        sessions=sessions, sessions_per_address=sessions_per_address, messages=messages, message_bytes=message_bytes,
        total_bytes=total_bytes, ttl=ttl, public_host=public_host,
    )  # fmt: skip
    go(_relay(host, port, settings, (tls_cert, tls_key) if tls_cert is not None else None))


async def _relay(host: str, port: int, settings: RelaySettings, tls: tuple[Path, Path | None] | None) -> int:
    import asyncio
    import signal
    import ssl

    from ...cli.serve_loop import say
    from ...security.addresses import is_loopback
    from ...terminal.errors import CommandError
    from .relay.server import relaying

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        async with relaying(host, port, settings, tls) as address:
            scheme = "acp+wss" if tls is not None or settings.public_host else "acp+ws"
            base = f"{scheme}://{settings.public_host or address.partition('://')[2]}"
            say(f"Relay on {address}")
            if tls is None and not is_loopback(host):
                say("  note: without TLS, whoever is on the way can read what passes; --tls-cert, or a proxy before it")
            say("Peers use it with:")
            say(f"$ interlingua peer --relay {base}")
            say("Ctrl-C stops.")
            await stop.wait()
            loop.remove_signal_handler(signal.SIGINT)  # a second Ctrl-C leaves at once
    except ssl.SSLError as error:
        raise CommandError(f"the certificate and its key cannot be used: {error.reason or error}") from error
    return 0
