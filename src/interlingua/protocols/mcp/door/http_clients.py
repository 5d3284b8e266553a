"""Clients over HTTP: sessions of the revisions with a handshake, the older pair of a stream and an address for POSTs,
and single requests of the revision that has no sessions."""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp

from ....model.run import Caller
from ....transports.http.body import json_response
from ....transports.http.event_outbox import Missed, Outbox, OutboxStream, Reader
from ....transports.http.sse import KEEP_ALIVE
from ....transports.jsonrpc.core import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR
from .. import wire
from .http_messages import SESSION, Asked
from .http_streams import Exchange, OneStream, PostsChannel, Refused
from .replica_notes import Notes

if TYPE_CHECKING:
    from .http import WebDoor

log = logging.getLogger("interlingua.mcp")

# The revision without sessions also reports the error by the status, because proxies do not read bodies.
_STATUS = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    METHOD_NOT_FOUND: 404,
    wire.HEADER_MISMATCH: 400,
    wire.MISSING_CAPABILITY: 400,
    wire.UNSUPPORTED_VERSION: 400,
}


class _Code(msgspec.Struct):
    code: int = 0


class _Failed(msgspec.Struct):
    error: _Code | None = None


_failed = msgspec.json.Decoder(_Failed).decode


def _json(answer: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return json_response(msgspec.Raw(answer), status, headers)


class Session:
    """One client of a revision with a handshake."""

    def __init__(self, door: WebDoor, caller: Caller, id_: str | None = None, times: int = 0) -> None:
        """`id_` is the id of a session that another process had; `times` counts the processes that had it before."""
        self.id = id_ or door.placed.id(secrets.token_urlsafe(24))
        self.caller = caller
        self.settings = door.settings
        self.channel = PostsChannel(door.settings, times=times)
        self.mcp = door.mcp.connect(self.channel, caller, silent_cancel=False)
        self.notes = Notes(self, door.placed, times)
        self.idle_since: float | None = None
        self._door = door
        self._busy = 0  # requests and streams that are open
        self._idle: asyncio.TimerHandle | None = None
        self._ended = False
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    # -- its life -----------------------------------------------------------------------------------------

    def enter(self) -> None:
        self._busy += 1
        self.idle_since = None

    def leave(self) -> None:
        self._busy -= 1
        if not self._busy and not self._ended:
            loop = asyncio.get_running_loop()
            self.idle_since = loop.time()
            if self._idle is None:
                self._idle = loop.call_later(self.settings.idle, self._rings)

    def _rings(self) -> None:
        """Forgets a session that was silent for too long. One timer serves many silences: it is set again only when it
        rings too early."""
        self._idle = None
        if self.idle_since is None:
            return  # the next client that leaves sets it again
        loop = asyncio.get_running_loop()
        left = self.idle_since + self.settings.idle - loop.time()
        if left > 0:
            self._idle = loop.call_later(left, self._rings)
        else:
            # A silent client has not cancelled: its runs may wait for an answer from anywhere, for a month.
            self._door.forget(self, runs_go_on=True)

    @property
    def free(self) -> bool:
        """Tells if no request or stream of the session is open."""
        return self.idle_since is not None and not self.mcp.rpc.rpc.open_calls

    async def _watch(self) -> None:
        await self.channel.too_much.wait()
        log.warning("session of %s: too many messages wait for it, it is closed", self.caller.id)
        self._door.forget(self, runs_go_on=True)

    async def end(self, *, runs_go_on: bool) -> None:
        if self._ended:
            return
        self._ended = True
        self.mcp.runs_go_on = runs_go_on
        if self._idle is not None:
            self._idle.cancel()
        self._watching.cancel()
        self.mcp.gone()
        await self.mcp.rpc.close()
        if not runs_go_on and not self._door.mcp.stopping:
            await self.notes.stop_all()

    # -- POST ---------------------------------------------------------------------------------------------

    async def initialize(self, asked: Asked, body: bytes) -> Response:
        exchange = self.channel.begin(asked.ids)
        await self.mcp.rpc.take(body)
        answer = await exchange.alone(None)
        if answer is None:
            raise Refused(503, "the server stops")
        if _failed(answer).error is not None:
            return _json(answer, 400)
        await self.notes.begin(asked.messages[0].get("params"))
        return _json(answer, 200, {SESSION: self.id})

    async def post(self, asked: Asked, body: bytes) -> ASGIApp:
        if asked.batch and self.mcp.version != "2025-03-26":
            raise Refused(400, f"{self.mcp.version} has no batches; send one message at a time")
        ids = asked.ids
        if not ids:
            for message in asked.messages:
                if message.get("method") == "notifications/cancelled" and isinstance(message.get("params"), dict):
                    await self.notes.cancelled(message["params"].get("requestId"))
            await self.mcp.rpc.take(body)
            return Response(status_code=202)
        exchange = self.channel.begin(ids)
        await self.mcp.rpc.take(body)
        answer = await exchange.alone(self.settings.patience)
        if answer is not None:
            return _json(answer)
        if self.channel.closed:
            raise Refused(404, "the session has ended")
        reader = exchange.outbox.open()
        self.channel.keep(exchange)
        exchange.asked = asked.messages
        noted = self.notes.stream(exchange)
        if noted is not None:
            await asyncio.wait({noted})  # an id that the client has seen can be taken up anywhere
        return self._stream(exchange.outbox, reader)

    # -- GET ----------------------------------------------------------------------------------------------

    def listen(self, after: str | None) -> ASGIApp:
        """Returns the stream for messages that belong to no request; or any stream, after an event of it."""
        if after is not None:
            self.notes.take_up(after)
            after = None if self.notes.whole(after) else after
        outbox, number = (self.channel.whole, None) if after is None else self.channel.find(after)
        try:
            reader = outbox.open(number)
        except Missed:
            raise Refused(400, f"Last-Event-ID {after!r}: what came after it is no longer here") from None
        return self._stream(outbox, reader)

    def _stream(self, outbox: Outbox, reader: Reader) -> ASGIApp:
        self.enter()
        return OutboxStream(
            outbox, reader, keep_alive=self.settings.keep_alive, stall=self.settings.stall, left=self._left,
            first=self._first(outbox, reader),
        )  # fmt: skip

    def _left(self) -> None:
        self.leave()
        self.channel.let_go_of_long()

    def _first(self, outbox: Outbox, reader: Reader) -> bytes:
        # Who has an id can take the stream up again, even before the first message. Clients of older revisions take an
        # event without data for a broken message (mcp 1.x).
        return outbox.place(reader.after) + b"data:\n\n" if self._names_first else KEEP_ALIVE

    @property
    def _names_first(self) -> bool:
        return self.mcp.version >= "2025-11-25"


class OldSession:
    """One client of HTTP+SSE: it reads one stream, and its session lasts as long as it reads."""

    def __init__(self, door: WebDoor, caller: Caller) -> None:
        self.id = door.placed.id(secrets.token_hex(16))
        self.caller = caller
        self.settings = door.settings
        self.channel = OneStream(door.settings)
        self.mcp = door.mcp.connect(self.channel, caller)
        self._door = door
        self._ended = False
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    @property
    def free(self) -> bool:
        return False

    async def _watch(self) -> None:
        await self.channel.too_much.wait()
        log.warning("session of %s: too many messages wait for it, it is closed", self.caller.id)
        self._door.forget(self, runs_go_on=True)

    async def end(self, *, runs_go_on: bool) -> None:
        if self._ended:
            return
        self._ended = True
        self.mcp.runs_go_on = runs_go_on
        self._watching.cancel()
        self.mcp.gone()
        await self.mcp.rpc.close()

    def listen(self, posts: str) -> ASGIApp:
        """Returns the stream. `posts` is the address for the client's messages: a path, because clients insist on the
        origin that they connected to."""
        outbox = self.channel.outbox
        first = b"event: endpoint\ndata: %s?session_id=%s\n\n" % (posts.encode(), self.id.encode())
        return OutboxStream(
            outbox, outbox.open(), keep_alive=self.settings.keep_alive, stall=self.settings.stall, left=self._left,
            first=first,
        )  # fmt: skip

    def _left(self) -> None:
        self._door.forget(self, runs_go_on=True)

    async def post(self, asked: Asked, body: bytes) -> Response:
        if asked.ids:
            await self._room()
        await self.mcp.rpc.take(body)
        return Response(status_code=202)

    async def _room(self) -> None:
        """Waits while a client sends requests faster than it reads the answers."""
        try:
            async with asyncio.timeout(self.settings.stall):
                await self.channel.drain()
        except TimeoutError:
            raise Refused(429, "too many answers wait to be read; read the event stream") from None


class Single:
    """One request of the revision without sessions. A client that leaves before the answer cancels the request."""

    def __init__(self, door: WebDoor, caller: Caller) -> None:
        self.settings = door.settings
        self.channel = PostsChannel(door.settings, resumable=False)
        self.mcp = door.mcp.connect(self.channel, caller)
        self._door = door
        self._exchange: Exchange | None = None

    async def answer(self, asked: Asked, body: bytes) -> ASGIApp:
        exchange = self._exchange = self.channel.begin(asked.ids)
        streams = False
        try:
            await self.mcp.rpc.take(body)
            answer = await exchange.alone(self.settings.patience)
            if answer is not None:
                error = _failed(answer).error
                return _json(answer, 200 if error is None else _STATUS.get(error.code, 200))
            if self.channel.closed:
                raise Refused(503, "the server stops")
            streams = True
        finally:
            if not streams:
                self._left()
        return OutboxStream(
            exchange.outbox, exchange.outbox.open(), keep_alive=self.settings.keep_alive, stall=self.settings.stall,
            left=self._left, first=KEEP_ALIVE,
        )  # fmt: skip

    def _left(self) -> None:
        self.mcp.gone()
        if self._exchange is not None and self._exchange.over:
            self._door.singles.discard(self)
            self.mcp.rpc.let_go()
        else:
            self._door.forget(self)

    async def end(self, *, runs_go_on: bool) -> None:
        self.mcp.runs_go_on = runs_go_on
        self.mcp.gone()
        await self.mcp.rpc.close()
