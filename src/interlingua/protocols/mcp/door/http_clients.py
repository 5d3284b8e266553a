"""Clients over HTTP: sessions of the revisions with a handshake, the older pair of a stream and an address for POSTs,
and single requests of the revision that has no sessions."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp

from ....doors.replica_notes import Note
from ....doors.rpc_errors import Refused
from ....doors.sessions import ClientSession, ResumableSession, wait_for_room
from ....doors.streams import OutboxStream
from ....model.run import Caller
from ....transports.http.body import json_response
from ....transports.http.event_outbox import Missed, Outbox, Reader
from ....transports.http.sse import KEEP_ALIVE, NO_DATA, event_of
from ....transports.jsonrpc.connection import Connection
from ....transports.jsonrpc.core import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR
from .. import wire
from . import operations_lifecycle as lifecycle
from .http_messages import SESSION, Asked
from .http_streams import Exchange, OneStream, PostsChannel
from .replica_notes import StreamNotes

if TYPE_CHECKING:
    from .http import WebDoor

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


class Session(ResumableSession):
    """One client of a revision with a handshake."""

    def __init__(self, door: WebDoor, caller: Caller, id_: str | None = None, times: int = 0) -> None:
        super().__init__(door.sessions, caller, id_, times)
        self.settings = door.settings
        self.channel = PostsChannel(door.settings, times=times, overflow=self.overflow)
        self.connection = door.mcp.connect(self.channel, caller, silent_cancel=False)
        self.streams = StreamNotes(self, door.sessions.affinity.key(self.id))
        self.connection.changed = self.note
        self._door = door

    @property
    def rpc(self) -> Connection:
        return self.connection.rpc

    @property
    def is_silent(self) -> bool:
        return super().is_silent and not self.rpc.rpc.open_calls

    def note_extra(self) -> Any:
        return self.connection.level

    async def restore(self, note: Note) -> None:
        lifecycle.begin(self.connection, note.params)
        self.connection.level = note.extra
        # The client missed changes between the two processes, and it may come back without an event's id.
        self.channel.catch_up()
        await self.streams.restore()

    async def end(self, *, deleted: bool) -> None:
        # A client that vanished has not cancelled: its runs may wait for an answer from anywhere, for a month.
        self.connection.runs_go_on = not deleted
        self.connection.gone()
        await self.rpc.close()
        if deleted:
            await self.streams.cancel_all()

    # -- POST ---------------------------------------------------------------------------------------------

    async def initialize(self, asked: Asked, body: bytes) -> Response:
        exchange = self.channel.begin(asked.ids)
        await self.rpc.take(body)
        answer = await exchange.alone(None)
        if answer is None:
            raise Refused(503, "the server stops")
        if _failed(answer).error is not None:
            return _json(answer, 400)
        await self.opened(asked.messages[0].get("params"))
        return _json(answer, 200, {SESSION: self.id})

    async def post(self, asked: Asked, body: bytes) -> ASGIApp:
        if asked.batch and self.connection.version != "2025-03-26":
            raise Refused(400, f"{self.connection.version} has no batches; send one message at a time")
        ids = asked.ids
        if not ids:
            for message in asked.messages:
                if message.get("method") == "notifications/cancelled" and isinstance(message.get("params"), dict):
                    await self.streams.cancelled(message["params"].get("requestId"))
            await self.rpc.take(body)
            return Response(status_code=202)
        exchange = self.channel.begin(ids)
        await self.rpc.take(body)
        answer = await exchange.alone(self.settings.patience)
        if answer is not None:
            return _json(answer)
        if self.channel.closed:
            raise Refused(404, "the session has ended")
        reader = exchange.outbox.open()
        self.channel.keep(exchange)
        exchange.asked = asked.messages
        noted = self.streams.note(exchange)
        if noted is not None:
            await asyncio.wait({noted})  # then every process can resume it
        return self._stream(exchange.outbox, reader)

    # -- GET ----------------------------------------------------------------------------------------------

    def listen(self, after: str | None) -> ASGIApp:
        """Returns the stream for messages that belong to no request; or any stream, after an event of it."""
        if after is not None:
            self.streams.resume(after)
            after = None if self.streams.whole(after) else after
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
        self.channel.drop_long()

    def _first(self, outbox: Outbox, reader: Reader) -> bytes:
        # A client that has an id can resume the stream, even before the first message. Clients of older revisions take
        # an event without data for a broken message (mcp 1.x).
        return outbox.place(reader.after) + NO_DATA if self._names_first else KEEP_ALIVE

    @property
    def _names_first(self) -> bool:
        return self.connection.version >= "2025-11-25"


class OldSession(ClientSession):
    """One client of HTTP+SSE: it reads one stream, and its session lasts as long as it reads."""

    def __init__(self, door: WebDoor, caller: Caller) -> None:
        super().__init__(door.sessions, caller, door.sessions.new_id(secrets.token_hex(16)))
        self.settings = door.settings
        self.channel = OneStream(door.settings, self.overflow)
        self.connection = door.mcp.connect(self.channel, caller)

    async def end(self, *, deleted: bool) -> None:
        self.connection.gone()
        await self.connection.rpc.close()

    def listen(self, posts: str) -> ASGIApp:
        """Returns the stream. `posts` is the address for the client's messages: a path, because clients insist on the
        origin that they connected to."""
        outbox = self.channel.outbox
        first = event_of(f"{posts}?session_id={self.id}".encode(), event="endpoint")
        return OutboxStream(
            outbox, outbox.open(), keep_alive=self.settings.keep_alive, stall=self.settings.stall, left=self._left,
            first=first,
        )  # fmt: skip

    def _left(self) -> None:
        self._sessions.forget(self)

    async def post(self, asked: Asked, body: bytes) -> Response:
        if asked.ids:
            await wait_for_room(self.channel.drain(), self.settings.stall)
        await self.connection.rpc.take(body)
        return Response(status_code=202)


class Single:
    """One request of the revision without sessions. A client that leaves before the answer cancels the request."""

    def __init__(self, door: WebDoor, caller: Caller) -> None:
        self.settings = door.settings
        self.channel = PostsChannel(door.settings, resumable=False)
        self.connection = door.mcp.connect(self.channel, caller)
        self._door = door
        self._exchange: Exchange | None = None

    async def answer(self, asked: Asked, body: bytes) -> ASGIApp:
        exchange = self._exchange = self.channel.begin(asked.ids)
        streams = False
        try:
            await self.connection.rpc.take(body)
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
        self.connection.gone()
        if self._exchange is not None and self._exchange.over:
            self._door.singles.discard(self)
            self.connection.rpc.let_go()
        else:
            self._door.end_single(self)

    async def end(self) -> None:
        self.connection.runs_go_on = False  # to leave is how this client cancels
        self.connection.gone()
        await self.connection.rpc.close()
