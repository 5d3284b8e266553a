"""Connections to a tool server: a process of ours, or an address. Both carry messages for the client of the `mcp`
library.

The library has connections of its own. They are not used as they are, because one faulty server must disturb only its
own callers: its stdio (2.3) keeps a line of any length, and its HTTP ends the whole connection with the first post that
fails, and sends nothing more while a notification is not taken. Retries and idle time are not handled here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import Any, Protocol

import anyio
import httpx2
import mcp_types as types
import msgspec
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from ..security.redaction import redact_url
from ..transports import json_text
from ..transports.process.child_process import Child

log = logging.getLogger("interlingua.tools")
_said = logging.getLogger("interlingua.tools.server")

# Codes of errors that are made here, in the place of an answer. Servers have those above -32100.
TOO_LARGE = -32101
NO_MESSAGE = -32102
LOST = -32103
REFUSED = -32104

_WAITING = 1000  # messages to a process that may wait
_PATIENCE = 5.0  # seconds for a server to take a message
_GIVEN_UP = 5.0  # seconds for the answer to a request that was taken back
_CLOSING = 2.0
_INITIALIZED = "notifications/initialized"
_CANCELLED = "notifications/cancelled"
_CHANGED = "notifications/tools/list_changed"

Streams = tuple[Any, Any]
"""The streams of messages to read and to write that a `mcp.client.Transport` gives."""


class Link(Protocol):
    """A connection to a server, which the library's client enters and leaves."""

    where: str  # its address, as it may be shown; none of a process
    lost: asyncio.Event  # set once no answer can come any more

    async def why(self) -> str:
        """Returns the reason why it ended, as text."""
        ...

    def said(self) -> str:
        """Returns the last words of a server that still runs."""
        ...

    async def __aenter__(self) -> Streams: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class _Seen(msgspec.Struct):
    """The members that tell the request of a message."""

    id: Any = None
    method: str | None = None
    params: msgspec.Raw = msgspec.Raw(b"null")


class _Cancelled(msgspec.Struct):
    requestId: Any = None


_seen = msgspec.json.Decoder(_Seen).decode
_cancelled = msgspec.json.Decoder(_Cancelled).decode


# -- a process ------------------------------------------------------------------------------------------------


class ProcessLink:
    """Starts a command in a process group of its own, and talks to it line by line."""

    def __init__(
        self,
        command: list[str],
        cwd: str,
        env: dict[str, str],
        *,
        max_bytes: int,
        clean: Callable[[str], str],
        patience: tuple[float, float] | None = None,
    ) -> None:
        self.where = ""
        self.lost = asyncio.Event()
        self._command, self._cwd, self._clean = command, cwd, clean
        # Little is inherited: a server has no business with the keys of others.
        self._env = {**get_default_environment(), **env}
        self._max_bytes = max_bytes
        self._patience = patience
        self._child: Child | None = None
        self._stuck = False
        self._tasks: list[asyncio.Task[None]] = []

    async def why(self) -> str:
        if self._child is None:
            return "it was never there"
        if self._stuck:
            return "it does not read what it is sent"
        return await self._child.how_it_ended()

    def said(self) -> str:
        return " | ".join(list(self._child.tail)[-5:]) if self._child is not None else ""

    async def __aenter__(self) -> Streams:
        child = self._child = await Child.start(
            self._command, self._cwd, self._env, clean=self._clean, log=_said, patience=self._patience
        )
        self._in, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        sent, self._out = anyio.create_memory_object_stream[SessionMessage](_WAITING)
        self._ends = (self._in, received, sent, self._out)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._read(child)), loop.create_task(self._write(child))]
        return received, sent

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        closing = asyncio.ensure_future(self._close())
        cancelled = False
        while not closing.done():  # it takes a few seconds at most, and must be done
            try:
                await asyncio.shield(closing)
            except asyncio.CancelledError:
                cancelled = True
        if cancelled and error is None:
            raise asyncio.CancelledError

    async def _close(self) -> None:
        assert self._child is not None
        await self._child.end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for end in self._ends:
            end.close()

    async def _read(self, child: Child) -> None:
        try:
            while frames := await child.channel.receive():
                for frame in frames:
                    message = self._message(frame)
                    if message is None:
                        continue
                    if isinstance(message, types.JSONRPCRequest):
                        await child.channel.drain()  # a server that does not read our answers may not ask more
                    await self._in.send(SessionMessage(message))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the library has stopped reading
        finally:
            self._in.close()
            self.lost.set()

    def _message(self, frame: bytes) -> types.JSONRPCMessage | None:
        """Returns a message for the library, or an error in place of an answer that is unusable."""
        try:
            seen = json_text.decode_as(frame, _seen)
        except ValueError as error:
            glimpse = json_text.glimpse(frame)
            if glimpse.kind == "request":
                return None
            return _error(glimpse.id, NO_MESSAGE, f"its answer cannot be read: {error}")
        if seen.method is not None and seen.id is None and seen.method != _CHANGED:
            return None  # progress and logs: they are not used, and there may be many
        if len(frame) > self._max_bytes:
            return _error(seen.id, TOO_LARGE, f"it answered with {len(frame)} bytes") if seen.method is None else None
        for read in (bytes, json_text.clean):  # a faulty answer is repaired and read once more
            with contextlib.suppress(ValueError):
                return types.jsonrpc_message_adapter.validate_json(read(frame), by_name=False)
        return _error(seen.id, NO_MESSAGE, "it answered with what is no message") if seen.method is None else None

    async def _write(self, child: Child) -> None:
        with contextlib.suppress(anyio.ClosedResourceError):
            async for sent in self._out:
                child.channel.send(sent.message.model_dump_json(by_alias=True, exclude_unset=True).encode())
                try:
                    async with asyncio.timeout(_PATIENCE):
                        await child.channel.drain()
                except TimeoutError:
                    self._stuck = True
                    self.lost.set()
                    return


def _error(id_: Any, code: int, message: str, data: Any = None) -> types.JSONRPCError | None:
    if type(id_) not in (int, str):
        return None
    return types.JSONRPCError(jsonrpc="2.0", id=id_, error=types.ErrorData(code=code, message=message, data=data))


# -- an address -----------------------------------------------------------------------------------------------


class AddressLink:
    """Streamable HTTP. Each request is a post of its own, so the end of the connection cannot be noticed."""

    def __init__(self, url: str, headers: dict[str, str], *, max_bytes: int) -> None:
        self.where = redact_url(url)
        self.lost = asyncio.Event()
        self._url = url
        self._headers = headers
        self._max_bytes = max_bytes
        self._stack = contextlib.AsyncExitStack()

    async def why(self) -> str:
        return "the connection ended"

    def said(self) -> str:
        return ""

    async def __aenter__(self) -> Streams:
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(Posts(self._headers, self._max_bytes))
            streams = await stack.enter_async_context(
                streamable_http_client(self._url, http_client=client, max_sse_event_size=self._max_bytes)
            )
            self._stack = stack.pop_all()
        return streams

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lost.set()
        await self._stack.__aexit__(kind, error, trace)


class Posts(httpx2.AsyncClient):
    """Sends the library's messages, and answers in place of a server that does not."""

    def __init__(self, headers: dict[str, str], max_bytes: int) -> None:
        super().__init__(
            headers={**headers, "accept-encoding": "identity"},  # a few compressed bytes can become any number
            timeout=httpx2.Timeout(None, connect=10.0, write=30.0),  # how long an answer may take, the caller decides
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),  # each call holds a connection
        )
        self._max_bytes = max_bytes
        self._exchanges: dict[Any, _Exchange] = {}
        self._telling: set[asyncio.Task[None]] = set()

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if request.method == "DELETE":
            return await self._within(_CLOSING, super().send(request, **options))
        if request.method != "POST":
            return await super().send(request, **options)
        seen = _seen(request.content)
        if seen.method is not None and seen.id is not None:
            return await self._request(request, seen.id, options)
        if seen.method == _INITIALIZED:  # before this is there, nothing else may be sent
            with contextlib.suppress(httpx2.HTTPError, OSError):
                return await self._within(_PATIENCE, super().send(request, **options))
            return httpx2.Response(202, request=request)
        if seen.method == _CANCELLED and (exchange := self._exchanges.get(_cancelled(seen.params).requestId)):
            exchange.give_up(asyncio.get_running_loop().time() + _GIVEN_UP)
        task = asyncio.get_running_loop().create_task(self._tell(super().send(request, **{**options, "stream": False})))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
        return httpx2.Response(202, request=request)

    async def _tell(self, sending: Coroutine[Any, Any, httpx2.Response]) -> None:
        with contextlib.suppress(httpx2.HTTPError, httpx2.StreamError, OSError):
            await self._within(_PATIENCE, sending)

    async def _within(self, seconds: float, sending: Coroutine[Any, Any, httpx2.Response]) -> httpx2.Response:
        try:
            async with asyncio.timeout(seconds):
                return await sending
        except TimeoutError:
            raise httpx2.ReadTimeout(f"no answer within {seconds:g} s") from None

    async def _request(self, request: httpx2.Request, id_: Any, options: dict[str, Any]) -> httpx2.Response:
        exchange = self._exchanges[id_] = _Exchange(lambda: self._exchanges.pop(id_, None))
        try:
            async with exchange.waiting():
                response = await super().send(request, **options)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
            exchange.over()
            return _answer(request, id_, LOST, str(error) or type(error).__name__)
        except BaseException:
            exchange.over()
            raise
        status = response.status_code
        if response.headers.get("content-encoding", "identity") != "identity":
            refused: tuple[int, str] | None = (NO_MESSAGE, "it compresses its answers, though it was asked not to")
        elif status in (401, 403, 429) or status >= 500:
            refused = (REFUSED, f"it answered {status} {response.reason_phrase}".strip())
        else:
            refused = None
        if refused is not None:
            exchange.over()
            await response.aclose()
            return _answer(request, id_, *refused, status)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        streamed = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        limited = _Limited(exchange, response.stream, math.inf if streamed else self._max_bytes)
        response.stream = _Clean(limited, self._max_bytes if streamed else None)
        return response

    async def aclose(self) -> None:
        for task in self._telling:
            task.cancel()
        await asyncio.gather(*self._telling, return_exceptions=True)
        await super().aclose()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.aclose()  # the library of our parent does not come by there


def _answer(request: httpx2.Request, id_: Any, code: int, message: str, data: Any = None) -> httpx2.Response:
    """Returns an answer in place of the server's."""
    error = {"code": code, "message": message, "data": data}
    return httpx2.Response(200, json={"jsonrpc": "2.0", "id": id_, "error": error}, request=request)


class _Exchange:
    """A request, until it is answered or given up."""

    def __init__(self, over: Callable[[], object]) -> None:
        self.over = over
        self._until: float | None = None
        self._timeout: asyncio.Timeout | None = None

    def give_up(self, at: float) -> None:
        self._until = at
        if self._timeout is not None:
            self._timeout.reschedule(at)

    @contextlib.asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout_at(self._until) as self._timeout:
                yield
        except TimeoutError:
            raise httpx2.ReadTimeout("it was given up") from None
        finally:
            self._timeout = None


class Broken(httpx2.StreamError):
    """An answer broke off. The library passes this error on to the caller; other errors would end the connection."""


class _Limited(httpx2.AsyncByteStream):
    def __init__(self, exchange: _Exchange, stream: httpx2.AsyncByteStream, max_bytes: float) -> None:
        self._exchange = exchange
        self._stream = stream
        self._left = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = aiter(self._stream)
        while True:
            try:
                async with self._exchange.waiting():
                    chunk = await anext(chunks, None)
            except (httpx2.HTTPError, OSError) as error:
                raise Broken(f"{BROKE}: {str(error) or type(error).__name__}") from error
            if chunk is None:
                return
            self._left -= len(chunk)
            if self._left < 0:
                raise Broken("it is longer than an answer may be")
            yield chunk

    async def aclose(self) -> None:
        self._exchange.over()
        await self._stream.aclose()


class _Clean(httpx2.AsyncByteStream):
    """An answer as JSON that the library takes: faulty parts are repaired, as on every other wire."""

    def __init__(self, stream: httpx2.AsyncByteStream, line: int | None) -> None:
        """`line` limits the bytes of a line of events that is read; None means that the answer is one message."""
        self._stream = stream
        self._line = line

    async def __aiter__(self) -> AsyncIterator[bytes]:
        kept = bytearray()
        async for chunk in self._stream:
            if self._line is None:  # all of it is bounded already
                kept += chunk
                continue
            whole, end, rest = chunk.rpartition(b"\n")
            if end:
                yield b"".join(_clean_line(line) + end for line in bytes(kept + whole).split(end))
                kept.clear()
            kept += rest
            if len(kept) > self._line:  # the library refuses it
                yield bytes(kept)
                kept.clear()
        if kept:
            yield _clean(bytes(kept)) if self._line is None else _clean_line(bytes(kept))

    async def aclose(self) -> None:
        await self._stream.aclose()


def _clean_line(line: bytes) -> bytes:
    """Repairs a line of an event stream. JSON that goes on over several lines stays as it is."""
    name, colon, data = line.partition(b":")
    return name + colon + _clean(data) if name == b"data" and data.strip() else line


def _clean(frame: bytes) -> bytes:
    try:
        msgspec.json.decode(frame)
    except (ValueError, RecursionError):
        with contextlib.suppress(ValueError):  # the library reports the fault
            return json_text.clean(frame)
    return frame


BROKE = "the answer broke off"
