"""Implements the wires of MCP: the pipes of a command, Streamable HTTP, and the older pair of an event stream and
posts.

All of them take one message at a time, right or wrong, and keep what came in the same way. A request that a POST could
not carry becomes a message made here, with the request's `id`, the reason under `lost`, and the `status` of the answer
to the POST, if that was the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, Literal
from urllib.parse import urljoin, urlsplit

import msgspec

from interlingua.model.errors import Unavailable
from interlingua.transports.raw_client import Answer, Http, Stream

from ..base import Broken, Gone, Subject, shown
from ..clients.jsonrpc import Link, Message, StdioLink

__all__ = ["Link", "Message"]

Kind = Literal["stdio", "http", "sse"]

SESSION, VERSION = "mcp-session-id", "mcp-protocol-version"
_BOTH = "application/json, text/event-stream"
_MOVED = (307, 308)
_SOON = 1.0


class WebLink(Link):
    """The base of both connections over HTTP: posts, and event streams that are read as they come."""

    def __init__(self, http: Http) -> None:
        super().__init__(http.subject.patience, http.subject.quiet)
        self.http = http
        self.target = http.base  # the address of the posts
        self._tasks: set[asyncio.Task[None]] = set()

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _tell_lost(self, message: Any, why: str, status: int = 0) -> None:
        """Reports a request for which nothing more will come, unless it has its answer, as most do."""
        if not _is_request(message):
            return
        id_ = str(message["id"])
        if not any(str(m.get("id")) == id_ and ("result" in m or "error" in m) for m in reversed(self.messages)):
            await self.take(json.dumps({"id": message["id"], "lost": why, "status": status}).encode())

    async def _refused(self, message: Any, answer: Answer) -> None:
        """A POST was answered with an error of HTTP: by a JSON-RPC error too, or by that alone."""
        with contextlib.suppress(Broken):
            told = answer.json()
            if isinstance(told, dict) and isinstance(told.get("error"), dict) and _is_request(message):
                await self.take(json.dumps({**told, "id": message["id"]}).encode())
                return
        await self._tell_lost(message, f"the POST is answered with HTTP {answered(answer)}", answer.status)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.end()


def _is_request(message: Any) -> bool:
    return isinstance(message, dict) and "method" in message and "id" in message


def answered(answer: Answer) -> str:
    body = answer.body.decode(errors="replace").strip()
    return f"{answer.status}" + (f": {shown(body)}" if body else "")


class HttpLink(WebLink):
    """Streamable HTTP: with a session where the server gives one."""

    kind = "http"

    def __init__(self, http: Http) -> None:
        super().__init__(http)
        self.headers: dict[str, str] = {}  # headers of every request: the session and its revision

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, http: Http) -> AsyncIterator[HttpLink]:
        link = cls(http)
        try:
            yield link
        finally:
            await link.close()

    async def put(self, message: Any, headers: dict[str, str] | None = None) -> None:
        """Posts a message. A request goes on by itself; the effects of any other message are there when this
        returns."""
        posted = self._spawn(self._post(message, {**self.headers, **(headers or {})}))
        if not _is_request(message):
            await posted

    async def _post(self, message: Any, headers: dict[str, str]) -> None:
        try:
            async with self.http.stream("POST", self.target, message, headers={"accept": _BOTH, **headers}) as stream:
                if stream.status in _MOVED and self._move(stream):
                    pass
                elif 200 <= stream.status < 300:
                    self._begin(message, stream)
                    await self._read(stream)
                    await self._tell_lost(message, "the answer to the POST ended without one to the request")
                    return
                else:
                    await self._refused(message, await stream.body())
                    return
            await self._post(message, headers)  # it has moved, once
        except (Gone, Unavailable, Broken, ValueError) as error:
            await self._tell_lost(message, error.message if isinstance(error, Unavailable) else str(error))

    def _move(self, stream: Stream) -> bool:
        """Follows a redirect. Returns whether it leads to another path of the same server."""
        there = urljoin(self.target, stream.headers.get("location", ""))
        known, self.target = self.target, there
        return there != known and urlsplit(there)[:2] == urlsplit(known)[:2] and "//" in there

    def _begin(self, message: Any, stream: Stream) -> None:
        """The answer to `initialize` may name a session."""
        if isinstance(message, dict) and message.get("method") == "initialize" and SESSION in stream.headers:
            self.headers[SESSION] = stream.headers[SESSION]

    async def _read(self, stream: Stream) -> None:
        if stream.media_type == "text/event-stream":
            async for event in stream.events:
                if event.data:
                    await self.take(event.data.encode(errors="replace"))
            return
        body = (await stream.body()).body
        if body.strip():
            await self.take(body)

    async def put_bytes(self, data: bytes) -> Answer | None:
        headers = {"content-type": "application/json", "accept": _BOTH, **self.headers}
        return await self.http.ask("POST", self.target, content=data, headers=headers)

    async def listen(self) -> None:
        """Opens the stream of messages that belong to no request. A server need not have one, and may be slow to say
        so."""
        answered = asyncio.Event()
        self._spawn(self._listen(answered))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SOON):
                await answered.wait()

    async def _listen(self, answered: asyncio.Event) -> None:
        try:
            async with self.http.stream("GET", self.target, headers=self.headers) as stream:
                answered.set()
                if stream.status == 200 and stream.media_type == "text/event-stream":
                    await self._read(stream)
        except (Gone, Unavailable, ValueError):
            answered.set()

    def leave(self) -> None:
        self.headers.clear()

    async def close(self) -> None:
        if SESSION in self.headers:  # a server need not take it
            with contextlib.suppress(Gone, Unavailable, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self.http.ask("DELETE", self.target, headers=self.headers)
        await super().close()


class SseLink(WebLink):
    """HTTP+SSE of 2024-11-05: everything comes on one stream, whose first event tells where to post."""

    kind = "sse"

    def __init__(self, http: Http) -> None:
        super().__init__(http)
        self.refused: str | None = None  # why there is no such stream
        self._opened = asyncio.Event()
        self._spawn(self._listen())

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, http: Http) -> AsyncIterator[SseLink]:
        link = cls(http)
        try:
            await link._begun()
            yield link
        finally:
            await link.close()

    async def _begun(self) -> None:
        try:
            async with asyncio.timeout(self._patience):
                await self._opened.wait()
        except TimeoutError:
            raise Gone(f"the event endpoint did not come within {self._patience:g} s") from None
        if self.refused is not None:
            raise Broken(self.refused)

    async def _listen(self) -> None:
        try:
            async with self.http.stream("GET", self.target) as stream:
                if stream.status != 200 or stream.media_type != "text/event-stream":
                    whole = await stream.body() if stream.status != 200 else Answer(200, stream.headers, b"")
                    self.refused = f"a GET is answered with HTTP {answered(whole)}, and is no event stream"
                    return
                async for event in stream.events:
                    if event.event == "endpoint":
                        self.target = urljoin(self.target, event.data.strip())
                        self._opened.set()
                    elif event.data:
                        await self.take(event.data.encode(errors="replace"))
        except (Gone, Unavailable, ValueError) as error:
            self.refused = error.message if isinstance(error, Unavailable) else str(error)
        finally:
            if not self._opened.is_set() and self.refused is None:
                self.refused = "the event stream ended before the event endpoint came"
            self._opened.set()
            await self.end()

    def gone(self) -> str:
        return "the event stream ended"

    async def put(self, message: Any, headers: dict[str, str] | None = None) -> None:
        try:
            answer = await self.http.ask("POST", self.target, message, headers=headers)
        except (Gone, Unavailable) as error:
            await self._tell_lost(message, error.message if isinstance(error, Unavailable) else str(error))
            return
        if answer.status >= 300:
            await self._refused(message, answer)

    async def put_bytes(self, data: bytes) -> Answer | None:
        headers = {"content-type": "application/json"}
        return await self.http.ask("POST", self.target, content=data, headers=headers)


class Way(msgspec.Struct):
    """The kind of connection to the server, found out once."""

    kind: Kind
    modern: bool = False  # it has no handshake


@contextlib.asynccontextmanager
async def opened(subject: Subject, kind: Kind) -> AsyncIterator[Link]:
    """A new connection on which nothing was said yet."""
    if kind == "stdio":
        async with StdioLink.open(subject) as pipes:
            yield pipes
        return
    async with Http(subject) as http, (HttpLink if kind == "http" else SseLink).open(http) as link:
        yield link
