"""uvicorn's HTTP/1.1 with the head and the body of an answer in one write, and one timer per connection.

uvicorn writes the head at once, and the body when it comes: two calls to the system, and for most answers the second
comes in the same breath. Here a head waits for that, and no longer than to the end of the loop's turn; so do the frames
of a WebSocket for each other. And where uvicorn sets a timer after every answer, to close a connection that stays
silent, here one serves many silences.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class _Transport:
    """A transport that keeps the head of an answer for a moment. All else is as that of the connection."""

    __slots__ = ("_head", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, data: bytes) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head + data)
        elif data.startswith(b"HTTP/1.1 "):
            self._head = data
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    def _flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Frames:
    """A transport that writes what comes in one turn of the loop at once: updates, and the answer behind them, wake
    whoever reads them once."""

    __slots__ = ("_loop", "_transport", "_written")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._written: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._written:
            self._loop.call_soon(self._flush)
        self._written.append(data)

    def _flush(self) -> None:
        written, self._written = self._written, []
        if written:
            self._transport.write(written[0] if len(written) == 1 else b"".join(written))

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class OneWriteProtocol(HttpToolsProtocol):
    _silent_since: float | None = None  # nothing is asked, and nothing has to be answered
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._plain = transport
        super().connection_made(_Transport(transport, self.loop))  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        self.transport = _Frames(self._plain, self.loop)  # type: ignore[assignment]
        super().handle_websocket_upgrade()

    def _unset_keepalive_if_required(self) -> None:
        self._silent_since = None

    def on_response_complete(self) -> None:
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()  # which sets no timer then
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self._silent_since = self.loop.time()
        if self._timer is None:
            self._timer = self.loop.call_later(self.timeout_keep_alive, self._rings)

    def _rings(self) -> None:
        self._timer = None
        if self._silent_since is None:
            return  # the next answer sets it again
        left = self._silent_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._timer = self.loop.call_later(left, self._rings)
        else:
            self.timeout_keep_alive_handler()
