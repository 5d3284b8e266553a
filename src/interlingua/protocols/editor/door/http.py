"""The door over HTTP: one endpoint, as Streamable HTTP (POST, GET of event streams, DELETE) and as a WebSocket.

Over HTTP a connection is an id in a header. Messages of the client come as POSTs; our messages wait in outboxes, one
for the connection and one for each session, until the client opens their streams. A client that vanishes is forgotten
after a while; its sessions stay, and its runs go on.

Published clients differ, and all of them must work. The Python SDK 0.12.1 sends no session header with session/load,
session/resume and its answers, and opens a session's stream only after it has seen the session's id. The TypeScript SDK
2.4.0 opens the stream before it loads, gives up the connection at a 404, and fails a single request at other errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from ....engine.engine import Engine
from ....engine.ports import Replica
from ....model.documents import Document
from ....model.errors import InterlinguaError
from ....model.run import Caller
from ....security.auth import Authenticator
from ....security.caller_share import has_share
from ....transports import json_text
from ....transports.http.body import read_body
from ....transports.http.event_outbox import Missed, OutboxStream
from ....transports.jsonrpc.core import PARSE_ERROR
from ....transports.jsonrpc.http_errors import refusal, refused
from ....transports.websocket import GOING_AWAY, PROTOCOL_ERROR, ServerSocket, WebSocketChannel
from ..config import DoorSettings
from .connection import EditorDoor
from .http_streams import Refused, StreamsChannel, sent
from .replica_notes import Notes, is_of

log = logging.getLogger("interlingua.editor")

CONNECTION, SESSION = "acp-connection-id", "acp-session-id"
_CONNECTION = CONNECTION.encode()

# Of these, every client tells the session in a header too; of others, not all do.
_NEED_SESSION = (
    "session/prompt",
    "session/cancel",
    "session/set_mode",
    "session/set_config_option",
    "session/close",
)


class HttpConnection:
    """One client over HTTP."""

    def __init__(self, door: WebDoor, caller: Caller, id_: str | None = None, times: int = 0) -> None:
        """`id_` is the id of a connection that another process had; `times` counts the processes that had it before."""
        self.id = id_ or door.placed.id(secrets.token_urlsafe(24))
        self.caller = caller
        self.settings = door.settings
        self.channel = StreamsChannel(door.settings, times)
        self.editor = door.editors.connect(self.channel, caller)
        self.notes = Notes(self, door.placed, times)
        self._door = door
        self._busy = 0  # requests and streams that are open
        self._idle: asyncio.TimerHandle | None = None
        self._ended = False
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    def enter(self) -> None:
        self._busy += 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def leave(self) -> None:
        self._busy -= 1
        if not self._busy and not self._ended:
            self._idle = asyncio.get_running_loop().call_later(self.settings.idle, self._door.forget, self)

    async def _watch(self) -> None:
        await self.channel.too_much.wait()
        log.warning("connection of %s: too many messages wait for it, it is closed", self.caller.id)
        self._door.forget(self)

    async def end(self) -> None:
        """Ends the connection when the client leaves or is dismissed. Its runs go on."""
        if self._ended:
            return
        self._ended = True
        if self._idle is not None:
            self._idle.cancel()
        self._watching.cancel()
        await self.editor.rpc.close()
        self.editor.gone()

    # -- requests -----------------------------------------------------------------------------------------

    async def initialize(self, message: dict[str, Any], body: bytes) -> bytes:
        answer = self.channel.expect(message["id"])
        await self.editor.rpc.take(body)
        told = await answer
        if not sent(told).error:
            await self.notes.begin(message.get("params"))
        return told

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
                await self._room(session)
                self.channel.asked(id_, method, session, header is not None)
        else:
            self.channel.settled(message.get("id"))
        await self.editor.rpc.take(body)

    async def _room(self, session: str | None) -> None:
        """Waits while a client sends requests faster than it reads the answers."""
        try:
            async with asyncio.timeout(self.settings.stall):
                await self.channel.of(session).drain()
        except TimeoutError:
            raise Refused(429, "too many answers wait to be read; read the event streams") from None

    async def stream(self, session: str | None, after: str | None) -> ASGIApp:
        # A session that is not open yet is no error: some clients listen first, and load then.
        outbox = self.channel.add(session) if session is not None else self.channel.whole
        place, mark = self.channel.place(after)
        if session is not None:
            await self.notes.go_on(session, mark)
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


class WebDoor:
    """The endpoint."""

    def __init__(
        self,
        engine: Engine,
        auth: Authenticator,
        settings: DoorSettings | None = None,
    ) -> None:
        self.settings = settings or DoorSettings()
        self.auth = auth
        self.editors = EditorDoor(engine, self.settings)
        self.connections: dict[str, HttpConnection] = {}
        self.placed = engine.cluster.sessions("editor", self.settings.idle, self._let_go)
        self._sockets: dict[WebSocketChannel, str] = {}  # with whose they are
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    def routes(self) -> list[BaseRoute]:
        return [Route("/", _Endpoint(self)), WebSocketRoute("/", self.socket)]

    def _let_go(self) -> None:
        """Forgets all connections. By now another replica has them, or creates them when a client asks for them."""
        for connection in list(self.connections.values()):
            self.forget(connection, keeps_note=True)

    def forget(self, connection: HttpConnection, *, keeps_note: bool = False) -> None:
        self.connections.pop(connection.id, None)
        task = asyncio.get_running_loop().create_task(
            self._end(connection, forgotten=not self._closed and not keeps_note)
        )
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, connection: HttpConnection, *, forgotten: bool) -> None:
        await connection.end()
        if forgotten:
            with contextlib.suppress(InterlinguaError):
                await self.placed.drop(connection.id)

    async def close(self) -> None:
        """Ends all streams and sockets when the server stops, so that no client waits for a time-out."""
        self._closed = True
        for connection in list(self.connections.values()):
            self.forget(connection)
        closing = [socket.close(GOING_AWAY, "the server stops") for socket in self._sockets]
        await asyncio.gather(*closing, *self._ending)

    # -- other replicas -----------------------------------------------------------------------------------

    def elsewhere(self, scope: Scope) -> str | None:
        named = None
        if scope["type"] == "http":
            named = next((value.decode("latin-1") for name, value in scope["headers"] if name == _CONNECTION), None)
        return named if named is not None and named not in self.connections and self.placed.foreign(named) else None

    async def locate(self, named: str, caller: Caller | None) -> Replica | None:
        if caller is None:
            return None

        async def adopt(note: Document, times: int) -> None:
            if self._closed:
                return
            connection = HttpConnection(self, caller, named, times)
            connection.enter()
            try:
                await connection.notes.restore(note)
            finally:
                connection.leave()
            self.connections[named] = connection

        return await self.placed.locate(named, lambda note: is_of(note, named, caller), adopt)

    # -- HTTP ---------------------------------------------------------------------------------------------

    async def request(self, request: Request) -> ASGIApp:
        try:
            caller = await self.auth.authenticate(request.headers)
            if request.method == "POST":
                return await self._post(request, caller)
            if request.method == "DELETE":
                connection = self._find(request.headers, caller)
                self.forget(connection)
                await self.placed.drop(connection.id)  # no replica creates it again
                return Response(status_code=202)
            if request.method == "GET":
                accepted = request.headers.get("accept", "").lower()
                if not any(kind in accepted for kind in ("text/event-stream", "text/*", "*/*")):
                    raise Refused(406, "this is an event stream; accept text/event-stream")
                connection = self._find(request.headers, caller)
                return await connection.stream(request.headers.get(SESSION), request.headers.get("last-event-id"))
            return Response(status_code=405, headers={"allow": "GET, POST, DELETE"})
        except Refused as error:
            return refusal(error.status, error.error, id_=error.id)
        except InterlinguaError as error:
            return refused(error)

    async def _post(self, request: Request, caller: Caller) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refused(415, f"the body is {kind or 'of no type'!r}; send application/json")
        body = await read_body(request, self.settings)
        message = _message(body)
        if message.get("method") == "initialize" and "id" in message:
            return await self._initialize(request, caller, message, body)
        connection = self._find(request.headers, caller)
        connection.enter()
        try:
            await connection.post(message, body, request.headers.get(SESSION))
        finally:
            connection.leave()
        return Response(status_code=202)

    async def _initialize(self, request: Request, caller: Caller, message: dict[str, Any], body: bytes) -> Response:
        if type(message["id"]) not in (int, str):
            raise Refused(400, "the id of a request is a whole number or a string")
        if CONNECTION in request.headers:  # one whose first attempt failed may try again
            connection, refused = self._find(request.headers, caller), 400
        else:
            self._room(caller)
            connection, refused = HttpConnection(self, caller), 200
            self.connections[connection.id] = connection
        connection.enter()
        try:
            answer = await connection.initialize(message, body)
        finally:
            connection.leave()
        status = refused if sent(answer).error else 200
        return Response(answer, status, {CONNECTION: connection.id}, "application/json")

    def _room(self, caller: Caller) -> None:
        if self._closed:
            raise Refused(503, "the server stops")
        held = [*self._sockets.values(), *(one.caller.id for one in self.connections.values())]
        if len(held) >= self.settings.max_connections:
            raise Refused(503, f"there are {self.settings.max_connections} connections already")
        if has_share(caller, held.count(caller.id), self.settings.max_connections):
            raise Refused(429, f"you have {held.count(caller.id)} connections already")

    def _find(self, headers: Mapping[str, str], caller: Caller) -> HttpConnection:
        wanted = headers.get(CONNECTION)
        if wanted is None:
            raise Refused(400, "the header Acp-Connection-Id is missing; initialize gives you one")
        found = self.connections.get(wanted)
        if found is None or found.caller.id != caller.id:  # the owner of a connection stays secret
            raise Refused(404, "there is no such connection; begin with initialize")
        return found

    # -- WebSocket ----------------------------------------------------------------------------------------

    async def socket(self, websocket: WebSocket) -> None:
        try:
            caller = await self.auth.authenticate(websocket.headers)
            self._room(caller)
        except Refused as error:
            await websocket.send_denial_response(refusal(error.status, error.error))
            return
        except InterlinguaError as error:
            await websocket.send_denial_response(refused(error))
            return
        try:
            await websocket.accept(headers=[(CONNECTION.encode(), secrets.token_urlsafe(24).encode())])
        except WebSocketDisconnect:
            return
        channel = WebSocketChannel(ServerSocket(websocket))
        self._sockets[channel] = caller.id
        try:
            await self._serve(channel, caller)
        finally:
            await channel.close()
            self._sockets.pop(channel, None)

    async def _serve(self, channel: WebSocketChannel, caller: Caller) -> None:
        try:
            async with asyncio.timeout(self.settings.stall):
                first = await channel.receive()
        except TimeoutError:
            first = [b"null"]
        if not first:
            return
        if not _is_initialize(first[0]):
            await channel.close(PROTOCOL_ERROR, "the first message is initialize")
            return
        connection = self.editors.connect(channel, caller)
        try:
            await connection.rpc.take(first[0])
            await connection.rpc.run()
        finally:
            connection.gone()


class _Endpoint:
    """All methods of the path. It is a class, because starlette gives functions only GET, and their responses no
    stream."""

    def __init__(self, door: WebDoor) -> None:
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._door.request(Request(scope, receive))
        await answer(scope, receive, send)


# -- small readers --------------------------------------------------------------------------------------------


def _message(body: bytes) -> dict[str, Any]:
    try:
        message = json_text.decode(body)
    except json_text.Unreadable as error:
        seen = json_text.glimpse(body)
        raise Refused(400, str(error), PARSE_ERROR, seen.id if seen.kind == "request" else None) from None
    if isinstance(message, list):
        raise Refused(501, "batches are not taken over HTTP; send one message at a time")
    id_ = message.get("id") if isinstance(message, dict) and "method" in message else None
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise Refused(400, 'a message is an object with "jsonrpc": "2.0"', id_=id_)
    if not isinstance(message.get("method"), str) and not (
        "id" in message and ("result" in message or "error" in message)
    ):
        raise Refused(400, "a message has a method, or is the answer to a request", id_=id_)
    return message


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


__all__ = ["WebDoor"]
