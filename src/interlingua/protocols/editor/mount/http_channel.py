"""Channels to a remote agent: Streamable HTTP, or a WebSocket.

Over HTTP, messages leave one after the other as POSTs, and come back on event streams: one of the connection, and one
per session, which is opened before the first message about that session is sent. A stream that breaks is resumed with
`Last-Event-ID` where the server numbers its messages; otherwise the connection is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from functools import lru_cache
from typing import Any

import httpx2
import msgspec

from ....security.redaction import redact_text
from ....transports import json_text, websocket
from ....transports.channel import Channel
from ....transports.channel_queues import Queues
from ....transports.heartbeat import UNANSWERED, Pulse, answers, text_of
from ....transports.http import plain_client
from ....transports.http.sse import Reader
from ....transports.jsonrpc.core import INTERNAL_ERROR, Id, failure_message

log = logging.getLogger("interlingua.editor")

_ANSWERED_WITHIN = 60.0  # seconds for the answer to a POST
_CLOSING = 2.0
_SOON = 0.2
_MAX_EVENT = 64 * 1024 * 1024
_LOST = (401, 403, 404, 410)  # with these, the server no longer knows us
_FORGOTTEN = (404, 410)  # once we had a connection; before, there is nothing of this protocol
_AGAIN = (0.1, 0.5, 2.0)  # seconds before each attempt to open a broken stream again
_AUTH_REQUIRED = -32000


async def open_remote(url: str, headers: dict[str, str]) -> Channel:
    """Opens a channel to http(s):// or ws(s)://. Raises ConnectionError where no server answers."""
    scheme = url.partition("://")[0].lower()
    if scheme in ("ws", "wss"):
        return await websocket.connect(url, headers)
    if scheme in ("http", "https"):
        return HttpChannel(url, headers)
    raise ValueError(f"{url!r} is no address of an agent; expected http(s):// or ws(s)://")


async def reach(url: str, headers: dict[str, str]) -> None:
    """Checks that a server answers at an address. Raises ConnectionError where none does.

    It requests an event stream of no connection, which a server must refuse: a server that refuses it is alive, and
    keeps nothing of the request. An open TCP connection would prove less, because the system accepts it also for a
    server that hangs; and a whole conversation would cost too much, because some servers start a program for it.
    """
    at = "http" + url[2:] if url.lower().startswith("ws") else url
    verify = _tls() if at.lower().startswith("https") and at is not url else True  # as its WebSocket has it
    asking = {"accept": "text/event-stream", **headers}
    async with httpx2.AsyncClient(
        headers=asking, timeout=None, verify=verify, transport=plain_client.transport(verify)
    ) as client:
        await answers(client.stream("GET", at))


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()  # once: reading the certificates takes longer than a request


class _Message(msgspec.Struct):
    """The members that tell the session of a message."""

    id: Any = None
    method: str | None = None
    params: Any = None
    result: Any = None

    @property
    def session(self) -> str | None:
        for members in (self.params, self.result):
            id_ = members.get("sessionId") if isinstance(members, dict) else None
            if isinstance(id_, str):
                return id_
        return None


_message = msgspec.json.Decoder(_Message).decode


class _Stream:
    """An event stream that is open, or being opened."""

    def __init__(self, session: str | None) -> None:
        self.session = session
        self.ready = asyncio.Event()  # it is open, or cannot be opened
        self.last_id: str | None = None
        self.over = False  # its session was closed: that it ends is no loss
        self.refused = False
        self.task: asyncio.Task[None] | None = None


class HttpChannel(Queues):
    def __init__(self, url: str, headers: dict[str, str]) -> None:
        super().__init__(redact_text(url))
        self._url = url
        self._client = httpx2.AsyncClient(
            headers=headers,
            timeout=httpx2.Timeout(_ANSWERED_WITHIN, connect=10.0),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),  # a session holds a connection
            transport=plain_client.transport(),
        )
        self._connection: str | None = None
        self._streams: dict[str | None, _Stream] = {}
        self._theirs: dict[Id, str] = {}  # requests of the agent: the sessions that their answers name
        self._pulse = Pulse(lambda: reach(url, headers), self._lost)
        self._writing = asyncio.get_running_loop().create_task(self._write())

    # -- the channel --------------------------------------------------------------------------------------

    async def close(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING):
                await self._empty.wait()
        self._lost()
        self._writing.cancel()
        await asyncio.gather(self._writing, return_exceptions=True)
        await self._pulse.end()
        if self._connection is not None:
            with contextlib.suppress(httpx2.HTTPError, OSError, TimeoutError):
                async with asyncio.timeout(_CLOSING):
                    await self._client.delete(self._url, headers=self._headers(None))
            self._connection = None
        # Most servers end the streams now. The others are left; the readers notice that, and close their sockets, which
        # they would not do if they were cancelled.
        reading = [stream.task for stream in self._streams.values() if stream.task is not None]
        if reading:
            await asyncio.wait(reading, timeout=_SOON)
        await self._client.aclose()
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)

    def _lost(self, why: str = "") -> None:
        super()._lost(why)
        for stream in self._streams.values():
            stream.ready.set()

    # -- sending ------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        async for frame in self._outgoing():
            await self._post(frame)

    async def _post(self, frame: bytes) -> None:
        message = json_text.decode_as(frame, _message)
        session = message.session if message.method is not None else self._theirs.pop(message.id, None)
        if session is not None and self._connection is not None:
            await self._open(session, again=True).ready.wait()
        try:
            answer = await self._client.post(self._url, content=frame, headers=self._headers(session, posts=True))
        except (httpx2.HTTPError, OSError) as error:
            self._lost(text_of(error))  # not one answer: all open requests have lost their connection
            return
        self._pulse.heard()
        if not answer.is_success:
            said = f"{self._name} answered {answer.status_code}: {answer.text[:500]}"
            forgotten = answer.status_code in _FORGOTTEN and self._connection is not None
            if forgotten or answer.status_code in UNANSWERED:
                self._lost(said)
                return
            self._refused(message, _AUTH_REQUIRED if answer.status_code == 401 else INTERNAL_ERROR, said)
            if answer.status_code in _LOST or message.method == "initialize" or message.id is None:
                self._lost(said)
            return
        if message.method == "initialize" and self._connection is None:
            self._connection = answer.headers.get("acp-connection-id")
            if self._connection is None:
                self._refused(message, INTERNAL_ERROR, f"{self._name} gave no Acp-Connection-Id: not this protocol")
                self._lost("no Acp-Connection-Id")
                return
            self._open(None)
            self._pulse.begin()
            self._take(answer.content)
        elif message.method in ("session/close", "session/delete") and session in self._streams:
            self._streams[session].over = True
        elif answer.status_code == 200 and answer.content:  # a server that answers at once
            self._take(answer.content)

    def _headers(self, session: str | None, *, posts: bool = False) -> dict[str, str]:
        headers = {"content-type": "application/json"} if posts else {}
        if self._connection is not None:
            headers["acp-connection-id"] = self._connection
            if session is not None:
                headers["acp-session-id"] = session
        return headers

    def _refused(self, message: _Message, code: int, why: str) -> None:
        """Answers a request that the server refuses with an error, as if the agent had sent it."""
        if message.method is not None and message.id is not None:
            error = {"code": code, "message": why}
            self._take(msgspec.json.encode(failure_message(message.id, error)))

    # -- receiving ----------------------------------------------------------------------------------------

    def _open(self, session: str | None, *, again: bool = False) -> _Stream:
        stream = self._streams.get(session)
        ended = stream is not None and stream.task is not None and stream.task.done()
        if stream is None or (ended and (stream.over or (again and stream.refused))):
            stream = self._streams[session] = _Stream(session)
            stream.task = asyncio.get_running_loop().create_task(self._read(stream))
        stream.over = False
        return stream

    async def _read(self, stream: _Stream) -> None:
        """Reads one stream, for as long as it can be kept open."""
        waits = iter(_AGAIN)
        while not self._gone:
            before = stream.last_id
            try:
                why = await self._read_once(stream)
            except (httpx2.HTTPError, OSError, ValueError) as error:
                why = text_of(error)
            if stream.over:
                break
            if stream.last_id != before:
                waits = iter(_AGAIN)
            wait = next(waits, None)
            if stream.session is not None and not stream.ready.is_set() and stream.last_id is None:
                # Servers without such a session (yet) send its messages over the connection's stream.
                stream.refused = True
                break
            if stream.last_id is None or wait is None:
                self._lost(f"an event stream ended: {why}")
                break
            await asyncio.sleep(wait)
        stream.ready.set()

    async def _read_once(self, stream: _Stream) -> str:
        headers = {"accept": "text/event-stream", **self._headers(stream.session)}
        if stream.last_id is not None:
            headers["last-event-id"] = stream.last_id
        timeout = httpx2.Timeout(None, connect=10.0)
        async with self._client.stream("GET", self._url, headers=headers, timeout=timeout) as answer:
            if answer.status_code != 200:
                if stream.ready.is_set():
                    stream.last_id = None  # it was there, and cannot be taken up
                return f"it was answered with {answer.status_code}"
            stream.ready.set()
            reader = Reader(_MAX_EVENT)
            async for chunk in answer.aiter_bytes():
                self._pulse.heard()
                for received in reader.feed(chunk):
                    self._received(received.data.encode(), stream.session)
                stream.last_id = reader.last_id or stream.last_id
                await self._in_room.wait()
                if self._gone:
                    break
        return "the server ended it"

    def _received(self, frame: bytes, on: str | None) -> None:
        try:
            message = json_text.decode_as(frame, _message)
        except (ValueError, msgspec.ValidationError):
            message = _Message()  # the connection counts and reports unreadable messages
        if message.session is not None and message.session != on:
            self._open(message.session)
        about = message.session or on
        if message.method is not None and type(message.id) in (int, str) and about is not None:
            self._theirs[message.id] = about
        self._take(frame)
