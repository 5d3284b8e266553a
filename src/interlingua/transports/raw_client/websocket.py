"""Opens a WebSocket to a server, and keeps the frames that come."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, Self

import websockets.asyncio.client
import websockets.exceptions

from ...model.errors import Unavailable
from .endpoint import Endpoint, shown
from .messages import Heard


class Socket(Heard):
    """A WebSocket whose frames are JSON messages."""

    def __init__(self, socket: websockets.asyncio.client.ClientConnection, subject: Endpoint) -> None:
        super().__init__(subject.patience, subject.quiet)
        self.socket = socket
        self._reading = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, subject: Endpoint, **more: Any) -> AsyncIterator[Self]:
        opened = cls(await upgraded(subject, **more), subject)
        try:
            yield opened
        finally:
            await opened.close()

    async def _read(self) -> None:
        with contextlib.suppress(websockets.exceptions.WebSocketException, OSError):
            while True:
                frame = await self.socket.recv()
                await self.take(frame.encode() if isinstance(frame, str) else frame)
        await self.end()

    async def put(self, message: Any) -> None:
        await self.put_bytes(json.dumps(message).encode())

    async def put_bytes(self, data: bytes) -> None:
        with contextlib.suppress(websockets.exceptions.ConnectionClosed):  # the waiting reader sees the end
            await self.socket.send(data, text=True)

    def gone(self) -> str:
        code, reason = self.socket.close_code, self.socket.close_reason
        return f"the WebSocket was closed with {code}{f' ({shown(reason, 100)})' if reason else ''}"

    async def close(self) -> None:
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(1.0):
                await self.socket.close()
        self.abort()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    def abort(self) -> None:
        """Drops the connection without a close."""
        self.socket.transport.abort()


async def upgraded(subject: Endpoint, **more: Any) -> websockets.asyncio.client.ClientConnection:
    """A WebSocket at the server's address. Raises Unavailable where there is none."""
    assert subject.address is not None
    url = "ws" + subject.address.removeprefix("http") if subject.address.startswith("http") else subject.address
    headers = {**subject.headers, **more.pop("headers", {})}
    try:
        return await websockets.asyncio.client.connect(
            url,
            additional_headers=headers,
            max_size=subject.most,
            open_timeout=subject.patience,
            ping_interval=None,
            **more,
        )
    except (OSError, websockets.exceptions.WebSocketException, ValueError) as error:  # OSError: a timeout too
        raise Unavailable(f"there is no WebSocket at {url}: {str(error) or type(error).__name__}") from error
