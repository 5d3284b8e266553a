"""The door over HTTP. At the prefix itself: Streamable HTTP, for revisions with sessions and for the one without. At
`/sse` and `/messages/`: the older HTTP+SSE, which the published clients of agents over MCP speak.

A session belongs to its caller; for others it does not exist. A client that vanishes is forgotten after a while, and
can return with Last-Event-ID until then. Its runs go on, also when the server stops; a DELETE cancels them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Scope

from ....doors import endpoint
from ....doors.endpoint import Operation
from ....doors.rpc_errors import ERRORS, Refused, about
from ....doors.sessions import Sessions
from ....model.errors import InterlinguaError
from ....model.run import Caller
from ....security.auth import Authenticator
from ....transports.http.body import began, read_body
from .. import wire
from . import replica_notes
from .door import McpDoor
from .http_clients import OldSession, Session, Single
from .http_messages import SESSION, VERSION, Asked, accepts, by_name, check_modern, is_modern, read

log = logging.getLogger("interlingua.mcp")

_SESSION = SESSION.encode()
_METHODS = ["GET", "POST", "DELETE"]
_CLOSING = 10.0  # seconds that requests of clients that have left get to end, when the server stops


class WebDoor:
    def __init__(self, mcp: McpDoor, auth: Authenticator) -> None:
        self.settings = mcp.settings
        self.auth = auth
        self.mcp = mcp
        self.sessions = Sessions(
            mcp.engine, "mcp", limit=self.settings.max_sessions, idle=self.settings.idle,
            open_=lambda caller, id_, times: Session(self, caller, id_, times), id_in=_session_id,
            extra_space=replica_notes.STREAMS, displaces=True,
        )  # fmt: skip
        self.singles: set[Single] = set()

    def routes(self) -> list[Route]:
        return endpoint.routes(self, OPERATIONS, self._admit, ERRORS, log)

    async def _admit(self, request: Request, operation: Any) -> Caller:
        try:
            return await self.auth.authenticate(request.headers)
        except InterlinguaError as error:
            error.refused_message = await began(request)
            raise

    def end_single(self, single: Single) -> None:
        """Ends a request without a session whose client has left."""
        self.singles.discard(single)
        self.mcp.jobs.spawn(single.end())

    async def close(self) -> None:
        """Ends all open streams when the server stops, so that no client waits for a time-out."""
        self.sessions.closing = True
        await self.mcp.stop()
        for single in list(self.singles):
            self.end_single(single)
        await self.sessions.close()
        await self.mcp.jobs.wait(_CLOSING)

    # -- Streamable HTTP ----------------------------------------------------------------------------------

    async def answer(self, request: Request, caller: Caller) -> ASGIApp:
        if request.method == "POST":
            return await self._post(request, caller)
        headers = by_name(request.scope["headers"])
        version = headers.get(VERSION)
        if version == wire.MODERN:
            return _not_allowed("POST")
        if request.method not in _METHODS:
            return _not_allowed(*_METHODS)
        if version is not None and version not in wire.LEGACY:
            raise Refused(400, f"revision {version!r} is not spoken here", wire.UNSUPPORTED_VERSION)
        if request.method == "DELETE":
            await self.sessions.delete(self._session(headers, caller))
            return Response(status_code=204)
        _check_stream(headers)
        return self._session(headers, caller).listen(headers.get("last-event-id"))

    async def _post(self, request: Request, caller: Caller) -> ASGIApp:
        raw = request.scope["headers"]
        headers = by_name(raw)
        body = await read_body(request, self.settings)
        with about(body):
            if not accepts(headers, "application/json", "text/event-stream"):
                problem = "an answer may be JSON or an event stream; accept application/json, text/event-stream"
                raise Refused(406, problem)
            return await self._taken(raw, headers, body, caller)

    async def _taken(
        self, raw: list[tuple[bytes, bytes]], headers: Mapping[str, str], body: bytes, caller: Caller
    ) -> ASGIApp:
        asked = self._read(headers, body)
        if is_modern(headers, asked):
            check_modern(raw, headers, asked)
            if not asked.ids:  # without a session the client cannot be notified
                return Response(status_code=202)
            return await self._single(asked, body, caller)
        if asked.initializes and SESSION not in headers:
            return await self._initialize(asked, body, caller)
        session = self._session(headers, caller)
        with session.busy():
            return await session.post(asked, body)

    async def _single(self, asked: Asked, body: bytes, caller: Caller) -> ASGIApp:
        if self.sessions.closing:
            raise Refused(503, "the server stops")
        if len(self.singles) >= self.settings.max_requests:
            raise Refused(503, f"{self.settings.max_requests} requests are open already; try again later")
        single = Single(self, caller)
        self.singles.add(single)
        return await single.answer(asked, body)

    def _read(self, headers: Mapping[str, str], body: bytes) -> Asked:
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refused(415, f"the body is {kind or 'of no type'!r}; send application/json")
        return read(body, self.settings.max_batch)

    async def _initialize(self, asked: Asked, body: bytes, caller: Caller) -> Response:
        session = self.sessions.open(caller)
        with session.busy():
            answer = await session.initialize(asked, body)
        if answer.status_code != 200:
            self.sessions.forget(session)
        return answer

    def _session(self, headers: Mapping[str, str], caller: Caller) -> Session:
        id_ = headers.get(SESSION)
        if id_ is None:
            raise Refused(400, "the header Mcp-Session-Id is missing; initialize gives you one")
        session = self.sessions.find(id_, caller, Session)
        if session is None:
            raise Refused(404, "there is no such session; begin with initialize")
        return session

    # -- HTTP+SSE -----------------------------------------------------------------------------------------

    async def old_stream(self, request: Request, caller: Caller) -> ASGIApp:
        if request.method != "GET":  # starlette takes HEAD for one
            return _not_allowed("GET")
        _check_stream(request.headers)
        self.sessions.make_room(caller)
        session = OldSession(self, caller)
        self.sessions.add(session)
        return session.listen(request.scope.get("root_path", "") + "/messages/")

    async def old_post(self, request: Request, caller: Caller) -> ASGIApp:
        body = await read_body(request, self.settings)
        with about(body):
            id_ = request.query_params.get("session_id")
            if id_ is None:
                raise Refused(400, "session_id is missing; the first event of the stream has the address")
            session = self.sessions.find(id_, caller, OldSession)
            if session is None:
                raise Refused(404, "there is no such session; open the stream again")
            return await session.post(self._read(request.headers, body), body)


OPERATIONS = [
    Operation(" ".join(_METHODS), "/", WebDoor.answer),
    Operation("GET", "/sse", WebDoor.old_stream),
    Operation("POST", "/messages/", WebDoor.old_post),
]


def _session_id(scope: Scope) -> str | None:
    """Returns the session that a request names."""
    if scope["path"].endswith("/messages/"):
        named = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("session_id")
        return named[0] if named else None
    for name, value in scope["headers"]:
        if name == _SESSION:
            id_: str = value.decode("latin-1").strip(" \t")
            return id_
    return None


def _check_stream(headers: Mapping[str, str]) -> None:
    if not accepts(headers, "text/event-stream"):
        raise Refused(406, "this is an event stream; accept text/event-stream")


def _not_allowed(*methods: str) -> Response:
    return Response(status_code=405, headers={"allow": ", ".join(methods)})


__all__ = ["WebDoor"]
