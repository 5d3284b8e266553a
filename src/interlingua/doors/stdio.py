"""Serves one client of a JSON-RPC protocol over pipes."""

from __future__ import annotations

from typing import Protocol

from ..transports.jsonrpc.connection import Connection

_LINGER = 1.0  # seconds in which open requests are answered after the client has closed its side


class Client(Protocol):
    @property
    def rpc(self) -> Connection: ...

    def gone(self) -> None: ...


async def serve_client(client: Client) -> None:
    """Serves until the client has gone."""
    try:
        await client.rpc.run(linger=_LINGER)
    finally:
        client.gone()
