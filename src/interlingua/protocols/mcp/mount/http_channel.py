"""A channel to a server at an address: Streamable HTTP, and the older pair of an event stream and posts.

The answer to the first message shows which of the two it is. Each request is a POST of its own, answered by JSON or by
an event stream; a stream that breaks is resumed with `Last-Event-ID` where the server numbers its events. A request
that the server can no longer answer is answered here, with an error that says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

import httpx2
import msgspec

from ....security.redaction import redact_text
from ....transports import json_text
from ....transports.channel_queues import Queues
from ....transports.heartbeat import Pulse, answers, text_of
from ....transports.http import plain_client
from ....transports.jsonrpc.core import INTERNAL_ERROR, Id, call_message, failure_message
from .. import wire
from .http_exchange import MESSAGE, Exchange, Message, error_in, message_of, reader, seen_in, version_in, whole_of
from .rpc_client import DENIED, LOST, NO_SERVER, modern_meta

log = logging.getLogger("interlingua.mcp")

T = TypeVar("T")

_CLOSING = 2.0
_SOON = 0.2
_SENT_WITHIN = 1.0  # seconds for a request to be on its way before it is taken back
_ENDPOINT_WITHIN = 10.0
_OPENING = ("initialize", "server/discover")
_NOT_HERE = (400, 404, 405, 406, 415, 501)  # a first message is answered so where only the older pair is spoken
_AGAIN = (0.1, 0.5, 2.0)  # seconds before each attempt to take up a broken stream
_LISTEN_AGAIN = (*_AGAIN, 10.0, 30.0)  # and so on: many end a stream that is silent, and have something to say later
_STREAMING = httpx2.Timeout(None, connect=10.0, write=30.0, pool=30.0)


class HttpChannel(Queues):
    def __init__(self, url: str, headers: dict[str, str]) -> None:
        super().__init__(redact_text(url))
        self._url = url
        self._client = httpx2.AsyncClient(
            headers=headers,
            timeout=httpx2.Timeout(60.0, connect=10.0),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),  # a run holds a connection
            follow_redirects=True,
            transport=plain_client.transport(),
        )
        self.streamable = False  # which of the two it is; neither is known before the first answer
        self._posts: str | None = None  # the older pair: where messages go
        self._session: str | None = None
        self._version: str | None = None
        self.keeps_session = False  # a later connection will find its run there
        self.about: dict[Id, Any] = {}  # requests of the server: the progress token of the run that they belong to
        self._exchanges: dict[Id, Exchange] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._telling: set[asyncio.Task[Any]] = set()  # of these, notifications and answers on their way
        self._pulse = Pulse(self._look, self._lost)
        self._looks = itertools.count(1)
        self._writing = asyncio.get_running_loop().create_task(self._write())

    # -- the channel --------------------------------------------------------------------------------------

    async def close(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING):
                await self._empty.wait()
                while self._telling:
                    await asyncio.wait(self._telling)
        self._lost()
        self._writing.cancel()
        await asyncio.gather(self._writing, return_exceptions=True)
        await self._pulse.end()
        if self._session is not None and not self.keeps_session:
            with contextlib.suppress(httpx2.HTTPError, OSError, TimeoutError):
                async with asyncio.timeout(_CLOSING):
                    await self._client.delete(self._url, headers=self._headers())
        self._session = None
        # Most servers end the streams now. The others are left; the readers notice that, and close their sockets, which
        # they would not do if they were cancelled.
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_SOON)
        await self._client.aclose()
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _look(self) -> None:
        """Sends a small request with an id that no other request has, so that its answer is ignored."""
        id_, method, params = f"look-{next(self._looks)}", "ping", dict[str, Any]()
        if self._version == wire.MODERN:  # which has no ping
            method, params = "server/discover", {"_meta": modern_meta()}
        frame = msgspec.json.encode(call_message(method, params, id_))
        url, headers = self._posts or self._url, self._asking(Message(id_, method, params))
        await answers(self._client.stream("POST", url, content=frame, headers=headers), whole=True)

    # -- sending ------------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        # Requests are sent in parallel in any case: where no message must go before it, a request need not wait for the
        # task that sends the rest.
        if self.streamable and self._posts is None and self._empty.is_set() and not self._gone:
            try:
                message = message_of(frame)
            except ValueError:
                message = None
            if message is not None and message.method not in _OPENING and message.method and message.id is not None:
                self._begin(frame, message)
                return
        super().send(frame)

    def _begin(self, frame: bytes, message: Message) -> None:
        exchange = self._exchanges[message.id] = Exchange(message.id, message.member("_meta", "progressToken"))
        exchange.task = self._spawn(self._ask(frame, message, exchange))

    async def _write(self) -> None:
        async for frame in self._outgoing():
            try:
                await self._deliver(frame, message_of(frame))
            except (httpx2.HTTPError, OSError, ValueError) as error:
                self._not_taken(error)

    def _not_taken(self, error: Exception) -> None:
        log.info("%s did not take a message: %s", self._name, text_of(error))

    async def _deliver(self, frame: bytes, message: Message) -> None:
        if message.method == "notifications/initialized":  # later messages depend on it
            await self._tell(frame, message)
            return
        if message.method is None or message.id is None:
            telling = self._spawn(self._tell(frame, message))  # one that is taken slowly holds up no run
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)
            return
        if message.method not in _OPENING and self._posts is None:
            self._begin(frame, message)
            return
        exchange = self._exchanges[message.id] = Exchange(message.id, message.member("_meta", "progressToken"))
        if message.method in _OPENING:  # later messages depend on the answer
            await self._first(frame, message, exchange)
        else:
            await self._post(frame, message, exchange)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _first(self, frame: bytes, message: Message, exchange: Exchange) -> None:
        if self._posts is not None:
            await self._post(frame, message, exchange)
            return
        refused = await self._ask(frame, message, exchange, first=True)
        if refused is None:
            self._pulse.begin()
            return
        status, said = refused
        if status in _NOT_HERE and await self._open_pair():
            self._pulse.begin()
            await self._post(frame, message, exchange)
            return
        where = "" if urlsplit(self._url).path.strip("/") else "; servers are often at a path, such as /mcp"
        self._fail(exchange, f"{self._name} does not speak MCP: it answered {status}{said}{where}", {"code": NO_SERVER})

    def _asking(self, message: Message) -> dict[str, str]:
        return {**self._headers(message), "accept": "application/json, text/event-stream"}

    async def _ask(
        self, frame: bytes, message: Message, exchange: Exchange, *, first: bool = False
    ) -> tuple[int, str] | None:
        """Sends a request over Streamable HTTP, and reads its answer.

        Returns a refusal that is no message, of the first request alone.
        """
        broke = "the server ended the stream before the answer"
        try:
            headers = self._asking(message)
            async with self._client.stream(
                "POST", self._url, content=frame, headers=headers, timeout=_STREAMING
            ) as answer:
                exchange.sent.set()
                self._pulse.heard()
                if not answer.is_success:
                    return await self._refused(answer, exchange, first=first)
                if first:
                    self.streamable = True
                    self._session = answer.headers.get("mcp-session-id", self._session)
                if "text/event-stream" in answer.headers.get("content-type", ""):
                    await self._read(answer, exchange, first=first)
                else:
                    self._received(await whole_of(answer), exchange, first=first)
        except (httpx2.HTTPError, OSError, ValueError) as error:
            broke = text_of(error)
            if first:
                self._fail(exchange, f"{self._name} cannot be reached: {broke}", {"code": LOST})
                self._lost(broke)
                return None
        finally:
            self._exchanges.pop(exchange.id, None)  # type: ignore[arg-type]
        if not exchange.answered and not self._gone:
            await self._take_up(exchange, broke)
        return None

    async def _refused(self, answer: httpx2.Response, exchange: Exchange, *, first: bool) -> tuple[int, str] | None:
        body, status = await whole_of(answer), answer.status_code
        said = f": {body[:300].decode(errors='replace').strip()}" if body else ""
        if status in (401, 403):
            self._fail(exchange, f"{self._name} answered {status}{said}", {"code": DENIED, "status": status})
            return None
        if status == 404 and self._session is not None:
            self._session = None
            self._fail(exchange, f"{self._name} no longer knows the session", {"code": LOST, "begun": False})
            self._lost("it no longer knows the session")
            return None
        error = error_in(body)
        if error is not None:
            self._take(msgspec.json.encode(failure_message(exchange.id, error)))
            exchange.answered = True
        elif first:
            return status, said
        else:
            self._fail(exchange, f"{self._name} answered {status}{said}", {})
        return None

    async def _tell(self, frame: bytes, message: Message) -> None:
        """Sends a notification, or an answer to the server."""
        if message.method is None:
            self.about.pop(message.id, None)
        exchange = None
        if message.method == "notifications/cancelled" and self._posts is None:
            exchange = self._exchanges.get(message.member("requestId"))
            if exchange is not None and self._version == wire.MODERN:
                if exchange.task is not None:
                    exchange.task.cancel()  # there, to leave is to cancel
                return
            if exchange is not None:
                with contextlib.suppress(TimeoutError):  # it must not come before the request that it cancels
                    await asyncio.wait_for(exchange.sent.wait(), _SENT_WITHIN)
        url = self._posts or self._url
        try:
            answer, _ = await self._send(url, frame, self._asking(message))
            if not answer.is_success:
                log.info("%s answered %s to %s", self._name, answer.status_code, message.method or "an answer")
        except (httpx2.HTTPError, OSError, ValueError) as error:
            self._not_taken(error)
        if exchange is not None and exchange.task is not None:
            exchange.task.cancel()  # the answer is not read any more, and many servers send none
        if message.method == "notifications/initialized" and self._posts is None:
            self._spawn(self._listen())

    async def _send(self, url: str, frame: bytes, headers: dict[str, str]) -> tuple[httpx2.Response, bytes]:
        async with self._client.stream("POST", url, content=frame, headers=headers) as answer:
            return answer, await whole_of(answer)

    def _headers(self, message: Message | None = None) -> dict[str, str]:
        headers = {"content-type": "application/json"} if message is not None else {}
        if self._session is not None:
            headers["mcp-session-id"] = self._session
        if message is not None and message.member("_meta", wire.META_VERSION) == wire.MODERN:
            self._version = wire.MODERN
            headers["mcp-method"] = str(message.method)
            name = message.member("name")
            if isinstance(name, str) and name.isascii() and name.isprintable():
                headers["mcp-name"] = name
        if self._version is not None:
            headers["mcp-protocol-version"] = self._version
        return headers

    def _fail(self, exchange: Exchange, why: str, data: dict[str, Any]) -> None:
        """Answers a request with an error, as if by the server, where the server can no longer answer it."""
        if not exchange.answered and exchange.id is not None:
            exchange.answered = True
            error = {"code": INTERNAL_ERROR, "message": why, "data": {"transient": True, **data}}
            self._take(msgspec.json.encode(failure_message(exchange.id, error)))

    # -- receiving ----------------------------------------------------------------------------------------

    def _received(self, frame: bytes, exchange: Exchange, *, first: bool = False) -> None:
        if not frame.strip():
            return
        try:
            for seen in seen_in(frame):
                if not isinstance(seen.method, str):
                    exchange.answered = exchange.answered or seen.answers(exchange.id)
                elif exchange.token is not None and type(seen.id) in (int, str):
                    self.about[seen.id] = exchange.token
        except ValueError as error:
            if json_text.glimpse(frame).kind == "request":
                self._take(frame)  # the connection tells that it cannot be read
            else:  # whatever it is, it came where the answer was to come
                log.warning("an answer of %s cannot be read: %s", self._name, error)
                self._fail(exchange, f"the answer of {self._name} cannot be read: {error}", {"transient": False})
                if exchange.id is None:
                    self._take(frame)
            return
        if first and exchange.answered:
            self._version = self._version or version_in(frame)
        self._take(frame)

    async def _read(self, answer: httpx2.Response, exchange: Exchange, *, first: bool = False) -> None:
        events = reader()
        async for chunk in answer.aiter_bytes():
            self._pulse.heard()
            for received in events.feed(chunk):
                exchange.events += 1
                if received.event in MESSAGE:
                    self._received(received.data.encode(), exchange, first=first)
            exchange.last_id = events.last_id or exchange.last_id
            if events.retry is not None:
                exchange.retry = min(events.retry / 1000, _LISTEN_AGAIN[-1])
            await self._in_room.wait()
            if self._gone or (first and exchange.answered):
                break

    async def _take_up(self, exchange: Exchange, why: str) -> None:
        """Resumes a stream that broke, where its events are numbered."""
        waits = iter(_AGAIN)
        while exchange.last_id is not None and not exchange.answered and not self._gone:
            before = exchange.last_id
            wait = next(waits, None)
            if wait is None:
                break
            await asyncio.sleep(max(wait, exchange.retry))
            try:
                status = await self._get(exchange)
            except (httpx2.HTTPError, OSError, ValueError) as error:
                why = text_of(error)
                continue
            if status != 200:
                why = f"it was answered with {status} when it was taken up again"
                break
            if exchange.last_id != before:
                waits = iter(_AGAIN)
        if not self._gone:
            self._fail(exchange, f"the answer of {self._name} was lost: {why}", {"code": LOST})

    async def _get(self, exchange: Exchange) -> int:
        """Reads an event stream to its end. Returns the status of the answer."""
        headers = {**self._headers(), "accept": "text/event-stream"}
        if exchange.last_id is not None:
            headers["last-event-id"] = exchange.last_id
        async with self._client.stream("GET", self._url, headers=headers, timeout=_STREAMING) as answer:
            if answer.status_code == 200 and "text/event-stream" in answer.headers.get("content-type", ""):
                await self._read(answer, exchange)
            return answer.status_code

    async def _listen(self) -> None:
        """Reads the messages of the server that belong to no request. Many servers have none, and refuse the stream."""
        exchange, waits = Exchange(), iter(_LISTEN_AGAIN)
        listened = False
        while not self._gone:
            before, status = exchange.events, 0
            with contextlib.suppress(httpx2.HTTPError, OSError, ValueError):
                status = await self._get(exchange)
            if status == 404 and listened and self._session is not None:
                self._session = None
                self._lost("it no longer knows the session")
                return
            if not listened and status not in (0, 200):
                return
            listened = listened or status == 200
            if exchange.events != before:
                waits = iter(_LISTEN_AGAIN)
            await asyncio.sleep(max(next(waits, _LISTEN_AGAIN[-1]), exchange.retry))

    # -- the older pair -----------------------------------------------------------------------------------

    async def _open_pair(self) -> bool:
        ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._spawn(self._read_pair(ready))
        try:
            return await asyncio.wait_for(ready, _ENDPOINT_WITHIN)
        except TimeoutError:
            return False

    async def _read_pair(self, ready: asyncio.Future[bool]) -> None:
        """Reads the one stream for all messages until it ends. Then the connection is lost, because its events have no
        numbers."""
        why = "its event stream ended"
        any_ = Exchange()
        try:
            accept = {"accept": "text/event-stream"}
            async with self._client.stream("GET", self._url, headers=accept, timeout=_STREAMING) as answer:
                if answer.status_code == 200 and "text/event-stream" in answer.headers.get("content-type", ""):
                    events = reader()
                    async for chunk in answer.aiter_bytes():
                        self._pulse.heard()
                        for received in events.feed(chunk):
                            if received.event == "endpoint":
                                self._posts = _same_server(str(answer.url), received.data)
                                if not ready.done():
                                    ready.set_result(True)
                            elif self._posts is not None and received.event in MESSAGE:
                                self._received(received.data.encode(), any_)
                        await self._in_room.wait()
                        if self._gone:
                            return
        except (httpx2.HTTPError, OSError, ValueError) as error:
            why = text_of(error)
        finally:
            if not ready.done():
                ready.set_result(False)
        if self._posts is not None:
            self._lost(why)

    async def _post(self, frame: bytes, message: Message, exchange: Exchange) -> None:
        assert self._posts is not None
        self._exchanges.pop(message.id, None)
        try:
            answer, body = await self._send(self._posts, frame, self._headers(message))
        except (httpx2.HTTPError, OSError, ValueError) as error:
            self._fail(exchange, f"{self._posts} cannot be reached: {text_of(error)}", {"code": LOST})
            return
        if not answer.is_success:
            denied = {"code": DENIED, "status": answer.status_code} if answer.status_code in (401, 403) else {}
            said = body[:300].decode(errors="replace")
            self._fail(exchange, f"{self._posts} answered {answer.status_code}: {said}", denied)


def _same_server(stream: str, endpoint: str) -> str:
    """Returns the address for messages. It must be on the same server, so that no other server gets them."""
    url = urljoin(stream, endpoint)
    here, there = urlsplit(stream), urlsplit(url)
    if (here.scheme, here.netloc) != (there.scheme, there.netloc):
        raise ValueError(f"the server names an endpoint elsewhere: {url}")
    return url
