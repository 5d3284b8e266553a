"""Sends server-sent events: every door answers with an event stream through this module.

A reader gets more only after it has taken what it got before. Of a piece that it has not taken, only a slice stands in
its connection; a large piece that many readers get is held once for all of them. A reader that takes nothing for too
long is dropped, together with everything that waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..transports.http.event_outbox import Outbox, Reader
from ..transports.http.sse import KEEP_ALIVE

T = TypeVar("T")

STALL = 60.0
"""Seconds after which a reader that takes nothing is dropped."""

_SLICE = 64 * 1024  # bytes that are written at once
_LARGE = 256 * 1024  # bytes of a piece from which on it is held once for all readers
_HEADERS = {"content-type": "text/event-stream", "cache-control": "no-cache"}


class _Large:
    """A large piece; gone with its last reader."""

    __slots__ = ("__weakref__", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data


_large: weakref.WeakValueDictionary[bytes, _Large] = weakref.WeakValueDictionary()


def _held_once(piece: bytes) -> _Large:
    digest = hashlib.sha256(piece).digest()
    found = _large.get(digest)
    if found is None:
        found = _large[digest] = _Large(piece)
    return found


class EventStream(Response):
    """An ASGI application that ends with its reader. What it tells is for `tell` to say, by `write`."""

    def __init__(self, *, stall: float = STALL, headers: Mapping[str, str] | None = None) -> None:
        self.status_code, self.background = 200, None
        self.init_headers({**_HEADERS, **(headers or {})})
        self._stall = stall
        self._send: Send | None = None

    async def tell(self) -> bool:
        """Writes the whole stream. Returns False if it has no proper end."""
        raise NotImplementedError

    def left(self) -> None:
        """The reader has gone: `tell` is cancelled, unless it is done within this turn of the loop."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = send
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        telling = asyncio.ensure_future(self._tell_all(send))
        listening = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({telling, listening}, return_when=asyncio.FIRST_COMPLETED)
            if not telling.done():
                self.left()
                await asyncio.sleep(0)
            if telling.done():
                telling.result()
        finally:
            self._send = None
            listening.cancel()
            if not telling.done():  # else it does not wait: a client that has read the end may look at once
                telling.cancel()
                await asyncio.gather(telling, return_exceptions=True)

    async def _tell_all(self, send: Send) -> None:
        """The end is sent in the same turn of the loop as the last piece, so that a short answer is one packet."""
        with contextlib.suppress(TimeoutError):  # the reader stopped reading: its connection is given up
            if await self.tell():
                await send({"type": "http.response.body", "body": b""})

    async def write(self, piece: bytes) -> None:
        """Waits for a reader that is slow. Raises TimeoutError for one that takes nothing."""
        assert self._send is not None
        if len(piece) <= _SLICE:
            await self._pass(self._send, piece)
            return
        large = _held_once(piece) if len(piece) >= _LARGE else _Large(piece)
        del piece
        for start in range(0, len(large.data), _SLICE):
            await self._pass(self._send, large.data[start : start + _SLICE])
            await asyncio.sleep(0)  # a server hears of a reader that has gone in the loop's next turn

    async def _pass(self, send: Send, some: bytes) -> None:
        async with asyncio.timeout(self._stall):
            await send({"type": "http.response.body", "body": some, "more_body": True})


class PiecesStream(EventStream):
    """Streams what a generator yields, until it ends or the reader has gone."""

    def __init__(
        self, pieces: AsyncIterator[bytes], *, stall: float = STALL, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(stall=stall, headers=headers)
        self._pieces: Any = pieces

    async def tell(self) -> bool:
        async with contextlib.aclosing(self._pieces) as pieces:
            # The piece is given away, so that no caller holds it while a slow reader takes it.
            given: list[bytes] = []
            async for one in pieces:
                given.append(one)
                del one
                await self.write(given.pop())
        return True


class OutboxStream(EventStream):
    """An outbox as the answer to a GET. A reader that stops reading loses its connection, not its messages."""

    def __init__(
        self,
        outbox: Outbox,
        reader: Reader,
        *,
        keep_alive: float,
        stall: float,
        left: Callable[[], None],
        first: bytes | None = None,
    ) -> None:
        super().__init__(stall=stall)
        # At once: some clients count a stream as open with its first byte. And a reader with an id can resume the
        # stream, even before the first message.
        self._first = outbox.place(reader.after) + b"\n" if first is None else first
        self._outbox = outbox
        self._reader = reader
        self._keep_alive = keep_alive
        self._left = left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._outbox.left(self._reader)
            self._left()

    def left(self) -> None:
        self._reader.end()

    async def tell(self) -> bool:
        outbox, reader = self._outbox, self._reader
        piece = self._first
        while not reader.ended:
            if piece:
                await self.write(piece)
                if reader.ended:
                    return True
            reader.news.clear()
            piece = outbox.take()
            if piece:
                continue
            if outbox.ended:
                return True
            try:
                async with asyncio.timeout(self._keep_alive):
                    await reader.news.wait()
            except TimeoutError:
                piece = KEEP_ALIVE
        return True


def in_pieces(events: list[T], encoded: Callable[[T], bytes]) -> Iterator[list[bytes]]:
    """Yields events as pieces of a stream, each alone in a list. Both lists are emptied, so that a slow reader does not
    make the caller hold a piece."""
    events.reverse()
    while events:
        piece = [encoded(events.pop())]
        size = len(piece[0])
        while events and size < _SLICE:
            piece.append(encoded(events.pop()))
            size += len(piece[-1])
        if len(piece) > 1:
            piece[:] = [b"".join(piece)]
        yield piece


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
