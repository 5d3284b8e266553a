"""Sends HTTP requests to servers without TLS, for the clients of mounts, at a fifth of the cost of httpx2's own
transport.

Connections are kept for a few seconds after an answer, for all clients of an event loop together: a run that opens a
client of its own finds the connection of an earlier run. Requests that are less simple (TLS, proxies, bodies that come
in pieces) use httpx2's own transport.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any
from urllib.request import getproxies
from weakref import WeakKeyDictionary

import httptools
import httpx2

from .. import wire_tap

_IDLE = 4.0  # seconds that a connection is kept; servers hang up after five and more
_MOST_IDLE = 50  # per server
_FULL = 1024 * 1024  # bytes that were not read yet: the server waits
_LINGER = 1.0  # seconds for the last bytes of an answer whose reader knows all it wants
_SIMPLE = frozenset(("GET", "POST", "PUT", "PATCH", "DELETE"))
_LESS_SIMPLE = frozenset((b"content-encoding", b"set-cookie", b"location"))  # headers of an answer that httpx2 knows

Head = tuple[int, list[tuple[bytes, bytes]], httpx2.AsyncByteStream, dict[str, Any]]
"""Status and headers of an answer, what reads the rest, and httpx2's extensions."""


def transport(verify: ssl.SSLContext | bool = True) -> httpx2.AsyncBaseTransport | None:
    """Returns a transport for `httpx2.AsyncClient(transport=…)`. None if the environment names proxies: httpx2 handles
    those."""
    return None if _proxies() else Plain(verify)


def _proxies() -> bool:
    return any(scheme in ("http", "https", "all") for scheme in getproxies())


def let_end(response: httpx2.Response) -> None:
    """Marks an answer as read as far as it matters. If its end is still on the way, the connection waits for it and is
    used again, instead of being cut."""
    last_words = response.extensions.get("let_end")
    if last_words is not None:
        last_words()


class Shared:
    """Shares one client among all runs of a mount, in one event loop. A client that uses httpx2's own transport holds
    connections that must be closed: then each run has its own client."""

    def __init__(self, make: Callable[[], httpx2.AsyncClient], base: str) -> None:
        self._make = make
        self._plain = base.lower().startswith("http://")
        self._made: tuple[asyncio.AbstractEventLoop, wire_tap.Tap | None, httpx2.AsyncClient] | None = None

    def open(self) -> contextlib.AbstractAsyncContextManager[httpx2.AsyncClient]:
        loop, watching = asyncio.get_running_loop(), wire_tap.current
        if self._made is not None and self._made[0] is loop and self._made[1] is watching:
            return contextlib.nullcontext(self._made[2])
        client = self._make()
        if self._plain and not _proxies():
            self._made = loop, watching, client
            return contextlib.nullcontext(client)
        return client


class Plain(httpx2.AsyncBaseTransport):
    simple = _SIMPLE  # methods

    def __init__(self, verify: ssl.SSLContext | bool = True) -> None:
        self._verify = verify
        self._usual: httpx2.AsyncHTTPTransport | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url, body = request.url, _body_of(request)
        if url.scheme != "http" or body is None or request.method not in _SIMPLE:
            if self._usual is None:
                limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
                self._usual = httpx2.AsyncHTTPTransport(verify=self._verify, limits=limits)
            return await self._usual.handle_async_request(request)
        within = request.extensions.get("timeout", {})
        status, headers, stream, extensions = await self.exchange(
            url.host, url.port or 80, _head(request) + body, within.get("connect"), within.get("read")
        )
        return httpx2.Response(status, headers=headers, stream=stream, extensions=extensions)

    @staticmethod
    async def exchange(host: str, port: int, request: bytes, connect: float | None, read: float | None) -> Head:
        """Sends a request, and returns the head of its answer with a reader for the rest. Seconds to connect, and to
        wait for each piece of the answer."""
        lines = _lines()
        line = lines.free(host, port) or await lines.connect(host, port, connect)
        line.ask(request)
        return await Sent(lines, line, read).head()

    async def aclose(self) -> None:
        if self._usual is not None:
            await self._usual.aclose()


class Whole:
    """An answer that came in one breath."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        self.status = status
        self.headers = headers  # by their names in small letters
        self.body = body

    @property
    def is_stream(self) -> bool:
        return self.headers.get(b"content-type", b"").startswith(b"text/event-stream")


class Sent:
    """A request under way. `whole` returns its answer if all of it comes at once; else `head` does."""

    __slots__ = ("_line", "_lines", "_read")

    def __init__(self, lines: _Lines, line: _Line, read: float | None) -> None:
        self._lines = lines
        self._line = line
        self._read = read  # seconds to wait for each piece

    async def whole(self, within: float) -> Whole | None:
        """Waits so many seconds for the first bytes of the answer. Returns None if they are not all of it, or if it is
        not of the simplest form."""
        line = self._line
        with contextlib.suppress(httpx2.ReadTimeout):
            if not line.complete:
                await line.more(within)
        if not line.complete or line.status < 200:
            return None
        headers = {name.lower(): value for name, value in reversed(line.headers)}
        if not _LESS_SIMPLE.isdisjoint(headers):
            return None
        whole = Whole(line.status, headers, line.taken())
        self._lines.put(line)
        return whole

    async def head(self) -> Head:
        line = self._line
        try:
            await line.headed(self._read)
        except BaseException:
            line.cut()
            raise
        answer = _Answer(self._lines, line, self._read)
        extensions = {"http_version": b"HTTP/1.1", "reason_phrase": line.reason, "let_end": answer.let_end}
        return line.status, line.headers, answer, extensions

    def cut(self) -> None:
        """Cuts the connection, as the answer is not wanted any more."""
        self._line.cut()


def send(host: str, port: int, request: bytes, read: float | None) -> Sent | None:
    """Sends a request without waiting. Returns None if no connection is free: to make one takes a while."""
    lines = _lines()
    line = lines.free(host, port)
    if line is None:
        return None
    line.ask(request)
    return Sent(lines, line, read)


def _body_of(request: httpx2.Request) -> bytes | None:
    try:
        return request.content
    except httpx2.RequestNotRead:
        return None


def _head(request: httpx2.Request) -> bytes:
    lines = [b"%s %s HTTP/1.1" % (request.method.encode(), request.url.raw_path)]
    lines += [b"%s: %s" % (name, value) for name, value in request.headers.raw]
    head = b"\r\n".join(lines)
    if head.count(b"\n") != len(lines) - 1 or head.count(b"\r") != len(lines) - 1:
        raise httpx2.LocalProtocolError("a header has a line break in it")
    return head + b"\r\n\r\n"


class _Answer(httpx2.AsyncByteStream):
    """The body of an answer, and the connection that it comes by."""

    def __init__(self, lines: _Lines, line: _Line, within: float | None) -> None:
        self._lines = lines
        self._line: _Line | None = line
        self._within = within
        self._lets_end = False

    # No generator: one that is left in the middle is closed by the event loop, later, at a cost of some turns.
    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        chunk = await self._line.chunk(self._within) if self._line is not None else b""
        if not chunk:
            raise StopAsyncIteration
        return chunk

    def let_end(self) -> None:
        self._lets_end = True

    async def aclose(self) -> None:
        line, self._line = self._line, None
        if line is None:
            return
        if line.complete:
            self._lines.put(line)
        elif self._lets_end:
            self._lines.linger(line)
        else:
            line.cut()


class _Line(asyncio.Protocol):
    """A connection that carries one request after the other."""

    def __init__(self, place: tuple[str, int]) -> None:
        self.place = place
        self.status = 0
        self.reason = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = True
        self.ended: Any = None  # called when an answer that lingers is complete, or the connection is over
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headed = False
        self._stays = True
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._paused = False
        self._over: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    # -- asking -------------------------------------------------------------------------------------------

    def ask(self, request: bytes) -> None:
        self.status, self.reason, self.headers = 0, b"", []
        self.complete = self._headed = False
        self.taken()  # the unread rest of the answer before
        if self._transport is not None:
            self._transport.write(request)

    async def headed(self, within: float | None) -> None:
        while not self._headed:
            if self._over is not None:
                raise self._over
            await self.more(within)

    async def chunk(self, within: float | None) -> bytes:
        """Waits for the next bytes of the answer and returns them; nothing when the answer is complete."""
        while not self._chunks:
            if self.complete:
                return b""
            if self._over is not None:
                raise self._over
            await self.more(within)
        return self.taken()

    def taken(self) -> bytes:
        """Takes the bytes that have arrived and were not taken yet."""
        chunk = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return chunk

    async def more(self, within: float | None) -> None:
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        clock = None if within is None else loop.call_later(within, _late, waiter)
        try:
            await waiter
        finally:
            self._waiter = None
            if clock is not None:
                clock.cancel()
            del waiter  # its exception refers to this frame

    @property
    def usable(self) -> bool:
        if self._transport is None or self._transport.is_closing():  # the server has hung up
            return False
        return self.complete and self._stays and self._over is None

    def cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._over = self._over or httpx2.ReadError("the connection was cut here")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # -- the connection -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self.complete:  # no request is open
            self.cut()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._over = httpx2.RemoteProtocolError(f"the server's answer is no HTTP: {error}")
            self.cut()
        self._wake()
        if self._size > _FULL and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if not self.complete and self._until_the_end:
            self.complete = True
        if self._over is None:
            if error is not None:
                self._over = httpx2.ReadError(str(error) or type(error).__name__)
            elif self._headed:
                self._over = httpx2.RemoteProtocolError("the server hung up in the middle of its answer")
            else:
                self._over = httpx2.RemoteProtocolError("the server hung up without an answer")
        self._wake()
        self._tell_end()
        del self._parser  # it holds on to this

    @property
    def _until_the_end(self) -> bool:
        """True if the answer lasts as long as its connection: its headers give neither a length nor a transfer
        encoding."""
        names = {name.lower() for name, _ in self.headers}
        return self._headed and not names & {b"content-length", b"transfer-encoding"}

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _tell_end(self) -> None:
        ended, self.ended = self.ended, None
        if ended is not None:
            ended()

    # -- the parser ---------------------------------------------------------------------------------------

    def on_status(self, reason: bytes) -> None:
        self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._headed = self.status >= 200
        self._stays = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        if self.ended is None:  # else its reader has gone
            self._chunks.append(body)
            self._size += len(body)

    def on_message_complete(self) -> None:
        if not self._headed:  # only an interim status came
            self.reason, self.headers = b"", []
            return
        self.complete = True
        self._tell_end()


def _late(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(httpx2.ReadTimeout("the server said nothing for too long"))


class _Lines:
    """Keeps the unused connections of an event loop. They end with the loop."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, int], deque[_Line]] = {}
        self._lingering: dict[_Line, asyncio.TimerHandle] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._end: AsyncGenerator[None] | None = None  # closed by the loop when that ends
        self._over = False

    def free(self, host: str, port: int) -> _Line | None:
        idle = self._idle.get((host, port))
        while idle:
            line = idle.pop()
            if line.usable and asyncio.get_running_loop().time() - line.idle_since < _IDLE:
                return line
            line.close()
        return None

    async def connect(self, host: str, port: int, within: float | None) -> _Line:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(within):
                _, made = await loop.create_connection(lambda: _Line((host, port)), host, port)
        except TimeoutError:
            raise httpx2.ConnectTimeout(f"{host}:{port} did not answer within {within:g} s") from None
        except OSError as error:
            raise httpx2.ConnectError(str(error) or type(error).__name__) from error
        if self._end is None:
            self._end = self._ends()
            await anext(self._end)
        return made

    def put(self, line: _Line) -> None:
        idle = self._idle.setdefault(line.place, deque(maxlen=_MOST_IDLE))
        if not line.usable or len(idle) == _MOST_IDLE or self._over:
            line.close()
            return
        loop = asyncio.get_running_loop()
        line.idle_since = loop.time()
        idle.append(line)
        if self._sweeping is None:
            self._sweeping = loop.call_later(_IDLE / 2, self._sweep)

    def linger(self, line: _Line) -> None:
        """Keeps a connection until its answer is complete. If that takes too long, cuts it."""

        def ended() -> None:
            self._lingering.pop(line).cancel()
            self.put(line)

        line.ended = ended
        self._lingering[line] = asyncio.get_running_loop().call_later(_LINGER, line.cut)

    def _sweep(self) -> None:
        """Closes connections that were idle for long."""
        loop = asyncio.get_running_loop()
        for place, idle in list(self._idle.items()):
            while idle and idle[0].idle_since < loop.time() - _IDLE:
                idle.popleft().close()
            if not idle:
                del self._idle[place]
        self._sweeping = loop.call_later(_IDLE / 2, self._sweep) if self._idle else None

    # No task: one that is begun while the loop ends is never ended.
    async def _ends(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            self._over = True
            if self._sweeping is not None:
                self._sweeping.cancel()
                self._sweeping = None
            for idle in self._idle.values():
                while idle:
                    idle.pop().close()


_all: WeakKeyDictionary[asyncio.AbstractEventLoop, _Lines] = WeakKeyDictionary()


def _lines() -> _Lines:
    loop = asyncio.get_running_loop()
    found = _all.get(loop)
    if found is None:
        found = _all[loop] = _Lines()
    return found
