"""Relays a WebSocket that belongs to another replica: messages pass both ways until one side closes."""

from __future__ import annotations

import asyncio
import contextlib

import websockets.asyncio.client
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.exceptions import ConnectionClosed, InvalidStatus

_HANDSHAKE = b"sec-websocket-"
_OPEN = 10.0  # seconds
_GOING_AWAY = 1001


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
        both = [asyncio.ensure_future(_there(client, there)), asyncio.ensure_future(_back(client, there))]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
    with contextlib.suppress(RuntimeError, WebSocketDisconnect):
        await client.close(there.close_code or _GOING_AWAY, there.close_reason or "")


async def _there(client: WebSocket, there: websockets.asyncio.client.ClientConnection) -> None:
    with contextlib.suppress(ConnectionClosed):
        while (message := await client.receive())["type"] == "websocket.receive":
            await there.send(message["text"] if message.get("text") is not None else message["bytes"])


async def _back(client: WebSocket, there: websockets.asyncio.client.ClientConnection) -> None:
    with contextlib.suppress(ConnectionClosed):
        while True:
            message = await there.recv()
            if isinstance(message, str):
                await client.send_text(message)
            else:
                await client.send_bytes(message)
