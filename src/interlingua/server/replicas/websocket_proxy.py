"""Relays a WebSocket that belongs to another replica: text frames pass both ways until one side closes."""

from __future__ import annotations

import asyncio

import websockets.asyncio.client
from starlette.responses import Response
from starlette.websockets import WebSocket
from websockets.exceptions import InvalidStatus

from ...transports.websocket import GOING_AWAY, ClientSocket, ServerSocket, pump

_HANDSHAKE = b"sec-websocket-"
_OPEN = 10.0  # seconds


async def pass_socket_on(target: str, headers: list[tuple[bytes, bytes]], client: WebSocket) -> None:
    """Connects a client's WebSocket to another replica. Raises OSError if that replica cannot be reached."""
    named = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    kept = [(name, value) for name, value in named if name != "host" and not name.startswith(_HANDSHAKE.decode())]
    address = "ws" + target.removeprefix("http")
    try:
        there = await websockets.asyncio.client.connect(
            address, additional_headers=kept, max_size=None, open_timeout=_OPEN, proxy=None, compression=None,
            user_agent_header=None, subprotocols=client.scope.get("subprotocols") or None,
        )  # fmt: skip
    except InvalidStatus as error:
        told = error.response
        await client.send_denial_response(
            Response(bytes(told.body or b""), told.status_code, media_type=told.headers.get("content-type"))
        )
        return
    async with there:
        await client.accept(there.subprotocol)
        here, other = ServerSocket(client), ClientSocket(there)
        both = [asyncio.ensure_future(pump(here, other)), asyncio.ensure_future(pump(other, here))]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
    await here.close(there.close_code or GOING_AWAY, there.close_reason or "")
