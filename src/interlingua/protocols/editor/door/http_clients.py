"""Clients over HTTP and WebSocket. Over HTTP, a client's messages come as POSTs; ours wait in outboxes, one for the
connection and one for each session, until the client opens their streams."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp

from ....doors.replica_notes import Note
from ....doors.rpc_errors import Refused
from ....doors.sessions import ClientSession, ResumableSession, wait_for_room
from ....doors.streams import OutboxStream
from ....model.run import Caller
from ....transports import json_text
from ....transports.http.event_outbox import Missed
from ....transports.jsonrpc.connection import Connection
from ....transports.websocket import GOING_AWAY, PROTOCOL_ERROR, WebSocketChannel
from .http_streams import StreamsChannel, sent
from .replica_notes import PromptNotes

if TYPE_CHECKING:
    from .http import WebDoor

# Every client sends the session of these in a header, too; not all clients do for the others.
_NEED_SESSION = (
    "session/prompt",
    "session/cancel",
    "session/set_mode",
    "session/set_config_option",
    "session/close",
)


class HttpConnection(ResumableSession):
    """One client over HTTP."""

    def __init__(self, door: WebDoor, caller: Caller, id_: str | None = None, times: int = 0) -> None:
        super().__init__(door.sessions, caller, id_, times)
        self.settings = door.settings
        self.channel = StreamsChannel(door.settings, times, self.overflow)
        self.connection = door.editors.connect(self.channel, caller)
        self.connection.changed = self.note
        self.prompts = PromptNotes(self)

    @property
    def rpc(self) -> Connection:
        return self.connection.rpc

    def note_extra(self) -> Any:
        return self.prompts.extra()

    async def restore(self, note: Note) -> None:
        await self.prompts.restore(note)

    async def end(self, *, deleted: bool) -> None:
        await self.rpc.close()
        self.connection.gone()

    # -- requests -----------------------------------------------------------------------------------------

    async def initialize(self, message: dict[str, Any], body: bytes) -> bytes:
        expected = self.channel.expect(message["id"])
        await self.rpc.take(body)
        answer = await expected
        if not sent(answer).error:
            await self.opened(message.get("params"))
        return answer

    async def post(self, message: dict[str, Any], body: bytes, header: str | None) -> None:
        method = message.get("method")
        if isinstance(method, str):
            session = _session(message)
            if header is None and method in _NEED_SESSION:
                raise Refused(400, f"{method} needs the header Acp-Session-Id")
            if header is not None and session is not None and header != session:
                raise Refused(400, f"the header says session {header!r}, the message says {session!r}")
            id_ = message.get("id")
            if isinstance(id_, int | str):
                await wait_for_room(self.channel.of(session).drain(), self.settings.stall)
                self.channel.asked(id_, method, session, header is not None)
        else:
            self.channel.settled(message.get("id"))
        await self.rpc.take(body)

    async def stream(self, session: str | None, after: str | None) -> ASGIApp:
        # A session that is not open yet is no error: some clients listen first, and load then.
        outbox = self.channel.add(session) if session is not None else self.channel.whole
        place, mark = self.channel.place(after)
        if session is not None:
            await self.prompts.show_again(session, mark)
        try:
            reader = outbox.open(place)
        except Missed:
            raise Refused(
                409, f"messages after {after!r} are no longer here; open the session again with session/load"
            ) from None
        self.enter()

        def left() -> None:
            self.channel.left(session)
            self.leave()

        return OutboxStream(outbox, reader, keep_alive=self.settings.keep_alive, stall=self.settings.stall, left=left)


class SocketClient(ClientSession):
    """One client over a WebSocket."""

    is_named = False

    def __init__(self, door: WebDoor, caller: Caller, id_: str, channel: WebSocketChannel) -> None:
        super().__init__(door.sessions, caller, id_)
        self._channel = channel
        self._door = door

    async def serve(self) -> None:
        """Serves the client until it has gone."""
        try:
            async with asyncio.timeout(self._door.settings.stall):
                first = await self._channel.receive()
        except TimeoutError:
            first = [b"null"]
        if not first:
            return
        if not _is_initialize(first[0]):
            await self._channel.close(PROTOCOL_ERROR, "the first message is initialize")
            return
        connection = self._door.editors.connect(self._channel, self.caller)
        try:
            await connection.rpc.take(first[0])
            await connection.rpc.run()
        finally:
            connection.gone()

    async def end(self, *, deleted: bool) -> None:
        await self._channel.close(GOING_AWAY, "the server stops")


def _session(message: dict[str, Any]) -> str | None:
    params = message.get("params")
    session = params.get("sessionId") if isinstance(params, dict) else None
    return session if isinstance(session, str) else None


def _is_initialize(frame: bytes) -> bool:
    try:
        message = json_text.decode(frame)
    except json_text.Unreadable:
        return False
    if isinstance(message, list) and len(message) == 1:
        message = message[0]
    return isinstance(message, dict) and message.get("method") == "initialize" and "id" in message
