"""The door over HTTP: one endpoint, as Streamable HTTP (POST, GET of event streams, DELETE) and as a WebSocket.

Over HTTP a connection is an id in a header. A client that vanishes is forgotten after a while; its sessions stay, and
its runs go on.

Published clients differ, and all of them must work. The Python SDK 0.12.1 sends no session header with session/load,
session/resume and its answers, and opens a session's stream only after it has seen the session's id. The TypeScript SDK
2.4.0 opens the stream before it loads, gives up the connection at a 404, and fails a single request at other errors.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.types import ASGIApp, Scope
from starlette.websockets import WebSocket, WebSocketDisconnect

from ....doors import endpoint
from ....doors.endpoint import Operation
from ....doors.rpc_errors import ERRORS, Refused
from ....doors.sessions import Sessions
from ....model.errors import InterlinguaError
from ....model.run import Caller
from ....security.auth import Authenticator
from ....transports import json_text
from ....transports.http.body import read_body
from ....transports.jsonrpc.core import PARSE_ERROR
from ....transports.websocket import ServerSocket, WebSocketChannel
from .door import EditorDoor
from .http_clients import HttpConnection, SocketClient
from .http_streams import sent

log = logging.getLogger("interlingua.editor")

CONNECTION, SESSION = "acp-connection-id", "acp-session-id"
_CONNECTION = CONNECTION.encode()


class WebDoor:
    """The endpoint."""

    def __init__(self, editors: EditorDoor, auth: Authenticator) -> None:
        self.settings = editors.settings
        self.auth = auth
        self.editors = editors
        self.sessions = Sessions(
            editors.engine, "editor", limit=self.settings.max_connections, idle=self.settings.idle,
            open_=lambda caller, id_, times: HttpConnection(self, caller, id_, times), id_in=_connection_id,
        )  # fmt: skip

    def routes(self) -> list[BaseRoute]:
        admit = endpoint.authenticated(self.auth)
        return [*endpoint.routes(self, OPERATIONS, admit, ERRORS, log), WebSocketRoute("/", self.socket)]

    async def close(self) -> None:
        """Ends all streams and sockets when the server stops, so that no client waits for a time-out."""
        await self.sessions.close()

    # -- HTTP ---------------------------------------------------------------------------------------------

    async def answer(self, request: Request, caller: Caller) -> ASGIApp:
        if request.method == "POST":
            return await self._post(request, caller)
        if request.method == "DELETE":
            await self.sessions.delete(self._find(request.headers, caller))
            return Response(status_code=202)
        if request.method == "GET":
            accepted = request.headers.get("accept", "").lower()
            if not any(kind in accepted for kind in ("text/event-stream", "text/*", "*/*")):
                raise Refused(406, "this is an event stream; accept text/event-stream")
            connection = self._find(request.headers, caller)
            return await connection.stream(request.headers.get(SESSION), request.headers.get("last-event-id"))
        return Response(status_code=405, headers={"allow": "GET, POST, DELETE"})

    async def _post(self, request: Request, caller: Caller) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refused(415, f"the body is {kind or 'of no type'!r}; send application/json")
        body = await read_body(request, self.settings)
        message = _message(body)
        if message.get("method") == "initialize" and "id" in message:
            return await self._initialize(request, caller, message, body)
        connection = self._find(request.headers, caller)
        with connection.busy():
            await connection.post(message, body, request.headers.get(SESSION))
        return Response(status_code=202)

    async def _initialize(self, request: Request, caller: Caller, message: dict[str, Any], body: bytes) -> Response:
        if type(message["id"]) not in (int, str):
            raise Refused(400, "the id of a request is a whole number or a string")
        if CONNECTION in request.headers:  # one whose first attempt failed may try again
            connection, refused = self._find(request.headers, caller), 400
        else:
            connection, refused = self.sessions.open(caller), 200
        with connection.busy():
            answer = await connection.initialize(message, body)
        status = refused if sent(answer).error else 200
        return Response(answer, status, {CONNECTION: connection.id}, "application/json")

    def _find(self, headers: Mapping[str, str], caller: Caller) -> HttpConnection:
        id_ = headers.get(CONNECTION)
        if id_ is None:
            raise Refused(400, "the header Acp-Connection-Id is missing; initialize gives you one")
        connection = self.sessions.find(id_, caller, HttpConnection)
        if connection is None:
            raise Refused(404, "there is no such connection; begin with initialize")
        return connection

    # -- WebSocket ----------------------------------------------------------------------------------------

    async def socket(self, websocket: WebSocket) -> None:
        try:
            caller = await self.auth.authenticate(websocket.headers)
            self.sessions.make_room(caller)
        except InterlinguaError as error:
            await websocket.send_denial_response(ERRORS.response(error, websocket))
            return
        id_ = secrets.token_urlsafe(24)
        try:
            await websocket.accept(headers=[(_CONNECTION, id_.encode())])
        except WebSocketDisconnect:
            return
        channel = WebSocketChannel(ServerSocket(websocket))
        client = SocketClient(self, caller, id_, channel)
        self.sessions.add(client)
        try:
            await client.serve()
        finally:
            await channel.close()
            self.sessions.discard(client)


OPERATIONS = [Operation("GET POST DELETE", "/", WebDoor.answer)]


# -- small readers --------------------------------------------------------------------------------------------


def _message(body: bytes) -> dict[str, Any]:
    try:
        message = json_text.decode(body)
    except json_text.Unreadable as error:
        seen = json_text.glimpse(body)
        raise Refused(400, str(error), PARSE_ERROR, id_=seen.id if seen.kind == "request" else None) from None
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


def _connection_id(scope: Scope) -> str | None:
    """Returns the connection that a request names."""
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == _CONNECTION), None)


__all__ = ["WebDoor"]
