"""Looks at the server behind a WebSocket: each protocol gets a connection of its own, at the address and below its
usual prefix.

If it speaks none of them, the same address is looked at over HTTP: most servers have both there.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import msgspec

from ..model.errors import InterlinguaError, Unavailable
from ..protocols.probing import MOST, Spoken
from ..transports.raw_client import Broken, Endpoint, Gone
from ..transports.raw_client.websocket import Socket
from .probes import probes

Probe = Callable[[Socket, str], Awaitable[Spoken | None]]


async def look(
    url: str, headers: dict[str, str] | None = None, patience: float = 5.0
) -> tuple[list[Spoken], list[str]]:
    """Finds a protocol that is spoken there, or describes what is there instead. Raises Unavailable if nothing
    answers."""
    from .at_address import look as at_address

    base = url.rstrip("/")
    server = Endpoint(address=base, headers=headers or {}, patience=patience, most=MOST)
    speaking = [(own.socket, protocol.prefix) for protocol, own in probes() if own.socket is not None]
    for tries in (
        [(probe, server) for probe, _ in speaking],
        [(probe, _below(server, prefix)) for probe, prefix in speaking if not base.endswith(prefix)],
    ):
        spoken = await _first([_try(probe, at) for probe, at in tries])
        if spoken is not None:
            return [spoken], []
    web = re.sub("^ws", "http", base)
    try:
        return await at_address(web, headers, patience)
    except Unavailable as error:
        raise Unavailable(error.message.replace(web, base), transient=False) from None


def _below(server: Endpoint, prefix: str) -> Endpoint:
    return msgspec.structs.replace(server, address=f"{server.address}{prefix}")


async def _first(tries: list[Awaitable[Spoken | None]]) -> Spoken | None:
    """Returns what the first successful try finds."""
    tasks = [asyncio.ensure_future(attempt) for attempt in tries]
    try:
        for task in asyncio.as_completed(tasks):
            if (spoken := await task) is not None:
                return spoken
    finally:
        for running in tasks:
            running.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return None


async def _try(probe: Probe, server: Endpoint) -> Spoken | None:
    assert server.address is not None
    try:
        async with asyncio.timeout(2 * server.patience), Socket.open(server) as socket:
            return await probe(socket, server.address)
    except (Broken, Gone, InterlinguaError, TimeoutError):
        return None
