"""Answers with server-sent events: every event stream of every door is written here.

A reader gets more only after it has taken what it got before. Of a piece that it has not taken, only a slice stands in
its connection; a large piece that many readers get is held once for all of them. A silent stream gets a comment from
time to time. A reader that takes nothing for too long is dropped, together with everything that waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..security.caller_share import share_of
from ..transports.http.event_outbox import Outbox, Reader
from ..transports.http.sse import KEEP_ALIVE

__all__ = ["STALL", "EventStream", "OutboxStream", "PiecesStream", "Streams", "in_pieces"]

T = TypeVar("T")

STALL = 60.0
"""Seconds after which a reader that takes nothing is dropped."""
SILENCE = 15.0
"""Seconds after which a silent stream gets a comment."""

_SLICE = 64 * 1024  # bytes that are written at once
_LARGE = 256 * 1024  # bytes of a piece from which on it is held once for all readers
_HEADERS = {"content-type": "text/event-stream", "cache-control": "no-cache"}


class Stoppable(Hashable, Protocol):
    def stop(self) -> None: ...


class Streams:
    """The open streams of a door: how many there are, and how many of them each caller has."""

    def __init__(self, limit: int, tenths: int = 9) -> None:
        """One caller may have so many tenths of all streams, so that nobody takes those of the others."""
        self.limit = limit
        self.share = share_of(limit, tenths)
        self.closed = False  # the server stops
        self.open: set[Stoppable] = set()
        self._held: Counter[str | None] = Counter()

    @property
    def is_full(self) -> bool:
        return len(self.open) >= self.limit

    def why_full(self, caller: str | None) -> str:
        """Returns why a caller cannot open another stream; empty where it can."""
        if self.closed:
            return "the server stops"
        if self.is_full:
            return f"{self.limit} streams are open already"
        return f"you have {self._held[caller]} streams open already" if self.has_share(caller) else ""

    def has_share(self, caller: str | None) -> bool:
        """Tells if a caller gets no more. None is a caller without a share: the owner, or one among callers that cannot
        be told apart."""
        return caller is not None and self._held[caller] >= self.share

    @contextlib.contextmanager
    def holding(self, stream: Stoppable, caller: str | None) -> Iterator[None]:
        """Counts a stream of a caller while it is open."""
        self.open.add(stream)
        self._held[caller] += 1
        try:
            yield
        finally:
            self.open.discard(stream)
            self._held -= Counter([caller])  # forgets a caller without streams

    def close(self) -> None:
        """Ends all streams: they would stay open as long as their runs."""
        self.closed = True
        for stream in list(self.open):
            stream.stop()


class _Large:
    """A large piece; gone with its last reader."""

    __slots__ = ("__weakref__", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data


_large: weakref.WeakValueDictionary[bytes, _Large] = weakref.WeakValueDictionary()


def _held_once(piece: bytes) -> _Large:
    digest = hashlib.sha256(piece).digest()
    large = _large.get(digest)
    if large is None:
        large = _large[digest] = _Large(piece)
    return large


class EventStream(Response):
    """An ASGI application that ends with its reader. Subclasses write the events in `produce`, by `write`."""

    def __init__(
        self, *, keep_alive: float = SILENCE, stall: float = STALL, headers: Mapping[str, str] | None = None,
        comment: bytes = KEEP_ALIVE,
    ) -> None:  # fmt: skip
        self.status_code, self.background = 200, None
        self.init_headers({**_HEADERS, **(headers or {})})
        self._keep_alive = keep_alive
        self._stall = stall
        self._comment = comment
        self._send: Send | None = None
        self._producing: asyncio.Task[None] | None = None
        self._clock: asyncio.TimerHandle | None = None
        self._writing_since: float | None = None
        self._written_at = 0.0
        self._commenting: asyncio.Task[None] | None = None
        self._stopped = False  # it ends here, and its reader may read to the end
        self._dropped = False  # its reader takes nothing, or has half of a piece
        self.counted: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()  # while it is open

    async def produce(self) -> bool:
        """Writes the whole stream. Returns False if it has no proper end."""
        raise NotImplementedError

    def left(self) -> None:
        """The reader has gone: `produce` is cancelled, unless it is done within this turn of the loop."""

    def stop(self) -> None:
        """Ends the stream when the server stops."""
        self._end()
        self._stopped = True

    def _end(self) -> None:
        if self._producing is not None:
            self._producing.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.counted:
            await self._serve(receive, send)

    async def _serve(self, receive: Receive, send: Send) -> None:
        self._send = send
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        loop = asyncio.get_running_loop()
        self._written_at = loop.time()
        if self._stopped:
            await send({"type": "http.response.body", "body": b""})
            return
        self._producing = producing = asyncio.ensure_future(self._produce_all(send))
        listening = asyncio.ensure_future(_disconnected(receive))
        self._clock = loop.call_later(min(self._keep_alive, self._stall), self._tick)
        try:
            await asyncio.wait({producing, listening}, return_when=asyncio.FIRST_COMPLETED)
            if not producing.done():
                self.left()
                await asyncio.sleep(0)
            if producing.done():
                producing.result()
        finally:
            self._send = None
            self._clock.cancel()
            listening.cancel()
            open_ = [task for task in (producing, self._commenting) if task is not None and not task.done()]
            if open_:  # else it does not wait: a client that has read the end may look at once
                for task in open_:
                    task.cancel()
                await asyncio.gather(*open_, return_exceptions=True)
            self._producing = self._commenting = None

    async def _produce_all(self, send: Send) -> None:
        """The end is sent in the same turn of the loop as the last piece, so that a short answer is one packet."""
        try:
            has_end = await self.produce()
        except asyncio.CancelledError:
            if not self._stopped and not self._dropped:
                raise
            has_end = not self._dropped
        if has_end:
            await send({"type": "http.response.body", "body": b""})

    def _tick(self) -> None:
        """Watches the clock. One timer per stream: one per event would cost more than the event."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        silent = now + self._keep_alive
        if self._writing_since is None:
            silent = self._written_at + self._keep_alive
            if now >= silent:
                self._commenting = loop.create_task(self.write_comment())
                silent = now + self._keep_alive
        elif now >= self._writing_since + self._stall:
            self._dropped = True
            self._end()
            return
        self._clock = loop.call_at(min(silent, now + self._stall), self._tick)

    async def write_comment(self) -> None:
        """Shows a reader of a silent stream that it is still connected."""
        try:
            await self._pass(self._comment)
        except asyncio.CancelledError:
            self._dropped = True
            raise
        except OSError:  # the reader has gone, and the server says so in its own way
            pass
        finally:
            self._writing_since, self._written_at = None, asyncio.get_running_loop().time()

    async def write(self, piece: bytes) -> None:
        """Waits for a reader that is slow."""
        if self._commenting is not None:
            await self._commenting
            self._commenting = None
        try:
            if len(piece) <= _SLICE:
                await self._pass(piece)
                return
            large = _held_once(piece) if len(piece) >= _LARGE else _Large(piece)
            del piece
            for start in range(0, len(large.data), _SLICE):
                await self._pass(large.data[start : start + _SLICE])
                await asyncio.sleep(0)  # a server hears of a reader that has gone in the loop's next turn
        except asyncio.CancelledError:
            self._dropped = True
            raise
        finally:
            self._writing_since, self._written_at = None, asyncio.get_running_loop().time()

    async def _pass(self, some: bytes) -> None:
        assert self._send is not None
        self._writing_since = asyncio.get_running_loop().time()
        await self._send({"type": "http.response.body", "body": some, "more_body": True})


class PiecesStream(EventStream):
    """Streams the pieces of a generator, until it ends or the reader has gone."""

    def __init__(
        self, pieces: AsyncIterator[bytes], *, keep_alive: float = SILENCE, stall: float = STALL,
        headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(keep_alive=keep_alive, stall=stall, headers=headers)
        self._pieces: Any = pieces

    async def produce(self) -> bool:
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
        self, outbox: Outbox, reader: Reader, *, keep_alive: float, stall: float, left: Callable[[], None],
        first: bytes | None = None,
    ) -> None:  # fmt: skip
        super().__init__(keep_alive=keep_alive, stall=stall)
        # At once: some clients count a stream as open with its first byte. And a reader with an id can resume the
        # stream, even before the first message.
        self._first = outbox.place(reader.after) + b"\n" if first is None else first
        self._outbox = outbox
        self._reader = reader
        self._left = left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._outbox.left(self._reader)
            self._left()

    def left(self) -> None:
        self._reader.end()

    async def produce(self) -> bool:
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
            await reader.news.wait()
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
