"""Implements a channel over a WebSocket, one message per text frame: a server's (starlette) or a client's (websockets).

Binary frames are no messages, and are ignored. Every WebSocket of an HTTP server sends through this channel. Frames
that the reader has taken, or will never take, are freed at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol

import websockets.asyncio.client
import websockets.exceptions

from .channel_queues import SendQueue

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

_CLOSING = 2.0  # seconds for a peer to take what is queued at the end
_PING_EVERY, _PONG_WITHIN = 20.0, 60.0  # seconds; a server that answers no ping is gone

NORMAL, GOING_AWAY, PROTOCOL_ERROR = 1000, 1001, 1002


class Socket(Protocol):
    """The little that a channel needs of a WebSocket."""

    async def read(self) -> bytes | None:
        """The next text frame; None once the peer has gone."""
        ...

    async def write(self, text: str) -> None:
        """Raises ConnectionError when the peer has gone; waits for one that is slow."""
        ...

    async def close(self, code: int, reason: str) -> None: ...


class WebSocketChannel(SendQueue):
    turns = 4

    def __init__(self, socket: Socket) -> None:
        super().__init__()
        self._socket = socket
        self._closed = False
        self._writing = asyncio.get_running_loop().create_task(self._write())

    async def receive(self) -> list[bytes]:
        if self._gone:
            return []
        frame = await self._socket.read()
        if frame is None:
            self._lost()
            return []
        return [frame]

    def send(self, frame: bytes) -> None:
        if not self._closed:
            super().send(frame)

    async def _write(self) -> None:
        try:
            while (frame := await self._next()) is not None:
                text = [frame.decode()]
                del frame  # nothing here holds it while it is sent
                await self._socket.write(text.pop())
        except ConnectionError:
            pass
        finally:
            self._lost()

    async def close(self, code: int = NORMAL, reason: str = "") -> None:
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING):
                await self._empty.wait()
        self._lost()
        self._writing.cancel()
        await asyncio.gather(self._writing, return_exceptions=True)
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(_CLOSING):
                await self._socket.close(code, reason)


async def pump(source: Socket, target: Socket) -> None:
    """Passes frames on until one of both peers has gone."""
    with contextlib.suppress(ConnectionError):
        while (frame := await source.read()) is not None:
            await target.write(frame.decode())


class ServerSocket:
    """A WebSocket of a server, once it is accepted."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._ended = False

    async def read(self) -> bytes | None:
        while not self._ended:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                self._ended = True
            elif (text := message.get("text")) is not None:
                return str(text).encode()
        return None

    async def write(self, text: str) -> None:
        from starlette.websockets import WebSocketDisconnect

        try:
            await self._websocket.send_text(text)
        except (WebSocketDisconnect, RuntimeError, OSError) as error:  # RuntimeError: it was closed from here
            raise ConnectionError(str(error)) from error

    async def close(self, code: int, reason: str) -> None:
        if not self._ended:
            with contextlib.suppress(RuntimeError, OSError):
                await self._websocket.close(code, reason)


class ClientSocket:
    def __init__(self, connection: websockets.asyncio.client.ClientConnection) -> None:
        self._connection = connection

    async def read(self) -> bytes | None:
        while True:
            try:
                frame = await self._connection.recv()
            except websockets.exceptions.ConnectionClosed:
                return None
            if isinstance(frame, str):
                return frame.encode()

    async def write(self, text: str) -> None:
        try:
            await self._connection.send(text)
        except websockets.exceptions.ConnectionClosed as error:
            raise ConnectionError(str(error)) from error

    async def close(self, code: int, reason: str) -> None:
        await self._connection.close(code, reason)


async def connect(
    url: str, headers: dict[str, str] | None = None, *, max_message: int = 64 * 1024 * 1024, timeout: float = 10.0
) -> WebSocketChannel:
    """Connects to a server. Raises ConnectionError, with the server's words if it refused."""
    try:
        connection = await websockets.asyncio.client.connect(
            url, additional_headers=headers, max_size=max_message, open_timeout=timeout, ping_interval=_PING_EVERY,
            ping_timeout=_PONG_WITHIN,
        )  # fmt: skip
    except websockets.exceptions.InvalidStatus as error:
        body = bytes(error.response.body or b"")[:500].decode(errors="replace")
        raise ConnectionError(f"{url} answered {error.response.status_code}: {body}") from error
    except (OSError, websockets.exceptions.WebSocketException) as error:  # OSError: a timeout too
        raise ConnectionError(f"{url} cannot be reached: {str(error) or type(error).__name__}") from error
    return WebSocketChannel(ClientSocket(connection))
