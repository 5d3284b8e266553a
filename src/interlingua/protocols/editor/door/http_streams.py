"""The streams of one client over HTTP: a message goes to the stream of its session, or to that of the connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from ....doors.outbox_channel import OutboxChannel
from ....doors.rpc_errors import Refused
from ....transports.http.event_outbox import Outbox
from ....transports.jsonrpc.core import Id
from ..config import DoorSettings

_OPENING = ("session/load", "session/resume")
_ENDING = ("session/close", "session/delete")


class _Named(msgspec.Struct):
    session: Any = msgspec.field(name="sessionId", default=None)
    request: Any = msgspec.field(name="requestId", default=None)


class _Sent(msgspec.Struct):
    """The members of our own message that decide its stream."""

    id: Any = None
    method: str | None = None
    params: _Named | None = None
    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


sent = msgspec.json.Decoder(_Sent).decode
_named = msgspec.json.Decoder(_Named).decode


class StreamsChannel(OutboxChannel):
    """Answers go to the stream of the session in the request."""

    def __init__(self, settings: DoorSettings, times: int = 0, overflow: Callable[[], None] | None = None) -> None:
        """`times` counts the processes that had the connection before this one. It is part of message ids, so that a
        process knows its own. `overflow` is called when the client reads too slowly."""
        super().__init__(settings.max_buffered_bytes, settings.keep_bytes, overflow)
        self._max_streams = settings.max_streams
        self._before = f"{times}~" if times else ""
        self.whole = self.new_outbox(self._before)  # the connection's own
        self.sessions: dict[str, Outbox] = {}
        # Sessions that were opened by a client that has no stream for them, and does not know yet that it should: they
        # use the connection's, until a new request shows that the client has read all of it and has opened their own.
        self._stray: set[str] = set()
        self._over: set[str] = set()  # sessions that were closed: their streams go when their readers do
        self._asked: dict[Id, tuple[str, str | None]] = {}  # the client's open requests: method and session
        self._ours: dict[Id, str | None] = {}  # our own requests: session
        self._first: asyncio.Future[bytes] | None = None  # the answer to initialize goes into the answer to its POST
        self._first_id: Id | None = None
        self._marks: dict[str, str] = {}  # by session: the run and the event of its last message

    # -- the channel --------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        message = sent(frame)
        if message.method is None:
            self._answer(message, frame)
            return
        named = message.params or _Named()
        session = named.session if isinstance(named.session, str) else None
        if message.id is not None:
            self._ours[message.id] = session
        elif named.request is not None:  # a request is taken back where it was made, or it could come later than this
            session = self._ours.get(named.request)
        self.of(session).put(frame, mark=self._marks.get(session, "") if session is not None else "")

    def mark(self, session: str, run: str, seq: int) -> None:
        """Marks all later messages of a session as belonging to this event of a run, or to later ones."""
        self._marks[session] = f"{run}.{seq}"

    def _answer(self, answer: _Sent, frame: bytes) -> None:
        if self._first is not None and not self._first.done() and answer.id == self._first_id:
            self._first.set_result(frame)
            return
        method, session = self._asked.pop(answer.id, ("", None)) if type(answer.id) in (int, str) else ("", None)
        failed = bool(bytes(answer.error))
        if method == "session/new" and not failed:
            with contextlib.suppress(Refused):  # beyond the limit, a session uses the connection's stream
                self.add(_named(answer.result).session)
            self.whole.put(frame)
        elif method == "session/load":
            # The rules put this answer on the connection's stream, and its place is after the replay. Two streams have
            # no order: in the TypeScript SDK 2.4.0 the answer overtook the replay. So it follows the replay where the
            # client already reads that stream, and goes to the connection's stream for clients that open the session's
            # later.
            own = self.of(session)
            (own if own.reader is not None else self.whole).put(frame)
        else:
            mark = self._marks.get(session, "") if session is not None else ""
            if mark and method == "session/prompt":
                assert session is not None
                mark = self._marks[session] = f"{mark.removesuffix('.end')}.end"
            self.of(session).put(frame, mark=mark)
            if method in _ENDING and session in self.sessions and not failed:
                self._over.add(session)
        if failed and method in _OPENING and session is not None:
            self._stray.discard(session)

    async def drain(self) -> None:
        await self.whole.drain()

    async def drain_topic(self, topic: str) -> None:
        """Waits until a session's stream is read; other sessions go on."""
        await self.of(topic).drain()

    async def close(self) -> None:
        for outbox in [self.whole, *self.sessions.values()]:
            outbox.finish()

    # -- streams ------------------------------------------------------------------------------------------

    def of(self, session: str | None) -> Outbox:
        """Returns the outbox of a session. Messages of a session whose stream the client has not opened go to the
        connection's stream, which is read."""
        if session is None or session in self._stray:
            return self.whole
        return self.sessions.get(session, self.whole)

    def add(self, session: str) -> Outbox:
        outbox = self.sessions.get(session)
        if outbox is None:
            if len(self.sessions) >= self._max_streams:
                raise Refused(429, f"a connection has streams for at most {self._max_streams} sessions")
            outbox = self.sessions[session] = self.new_outbox(self._before)
        return outbox

    def place(self, event: str | None) -> tuple[str | None, str]:
        """Returns the position of a reader after an event id: its number, where this process sent it, and its mark."""
        if event is None:
            return None, ""
        before, mark, rest = event.rpartition("~")
        own = before + mark == self._before
        return rest if own else None, rest.partition(".")[2]

    def left(self, session: str | None) -> None:
        """Keeps a stream that lost its reader for the next reader, unless its session is over.

        (A stream does not end with its session: the TypeScript SDK 2.4.0 would fail a session/load that comes
        meanwhile.)
        """
        if session in self._over and self.sessions[session].reader is None:
            self._over.discard(session)
            self.sessions.pop(session).discard()

    # -- messages of the client ---------------------------------------------------------------------------

    def expect(self, id_: Id) -> asyncio.Future[bytes]:
        self._first, self._first_id = asyncio.get_running_loop().create_future(), id_
        return self._first

    def asked(self, id_: Id, method: str, session: str | None, header: bool) -> None:
        """Notes a request: its answer goes to its session's stream."""
        if session is not None:
            own = self.sessions.get(session)
            if method in _OPENING:
                self._over.discard(session)
                if header:
                    own = self.add(session)
                if own is not None and (header or own.used):
                    self._stray.discard(session)
                else:
                    self._stray.add(session)
            elif (
                session in self._stray
                and own is not None
                and own.reader is not None
                and all(other != session for _, other in self._asked.values())
            ):
                self._stray.discard(session)
        self._asked[id_] = (method, session)

    def settled(self, id_: Any) -> None:
        if type(id_) in (int, str):
            self._ours.pop(id_, None)
