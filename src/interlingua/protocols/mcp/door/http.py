"""The door over HTTP. At the prefix itself: Streamable HTTP, for revisions with sessions and for the one without. At
`/sse` and `/messages/`: the older HTTP+SSE, which the published clients of agents over MCP speak.

A session belongs to its caller; for others it does not exist. A client that vanishes is forgotten after a while, and
can return with Last-Event-ID until then. Its runs go on, also when the server stops; a DELETE cancels them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Scope

from ....engine.engine import Engine
from ....engine.ports import Replica
from ....model.documents import Document
from ....model.errors import InterlinguaError, Overloaded
from ....model.run import Caller
from ....security.auth import Authenticator
from ....security.caller_share import has_share
from ....transports.http.body import began, read_body
from ....transports.jsonrpc.http_errors import refusal, refused
from .. import wire
from ..config import DoorSettings
from . import replica_notes
from .connection import McpDoor
from .http_messages import SESSION, VERSION, Asked, about, accepts, by_name, check_modern, is_modern, read
from .http_streams import Refused
from .sessions import OldSession, Session, Single

_SESSION = SESSION.encode()
_METHODS = ["GET", "POST", "DELETE"]


class WebDoor:
    def __init__(
        self,
        engine: Engine,
        auth: Authenticator,
        settings: DoorSettings | None = None,
    ) -> None:
        self.settings = settings or DoorSettings()
        self.auth = auth
        self.mcp = McpDoor(engine, self.settings)
        self.sessions: dict[str, Session | OldSession] = {}
        self.placed = engine.cluster.sessions("mcp", self.settings.idle, self._let_go, replica_notes.STREAMS)
        self.singles: set[Single] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/", self.endpoint, methods=_METHODS),
            Route("/sse", self.old_stream, methods=["GET"]),
            Route("/messages/", self.old_post, methods=["POST"]),
        ]

    def forget(
        self, client: Session | OldSession | Single, *, runs_go_on: bool = False, keeps_note: bool = False
    ) -> None:
        """Forgets a client that has gone, or is dismissed."""
        if isinstance(client, Single):
            self.singles.discard(client)
        else:
            self.sessions.pop(client.id, None)
        task = asyncio.get_running_loop().create_task(client.end(runs_go_on=runs_go_on))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        if isinstance(client, Session) and not self._closed and not keeps_note:
            self.mcp.spawn(self._drop(client.id))

    async def _drop(self, session: str) -> None:
        with contextlib.suppress(InterlinguaError):  # it is swept later
            await self.placed.drop(session)

    def _let_go(self) -> None:
        """Forgets all sessions. By now another replica has them, or creates them when a client asks for them."""
        for client in list(self.sessions.values()):
            self.forget(client, runs_go_on=True, keeps_note=True)

    async def close(self) -> None:
        """Ends all open streams when the server stops, so that no client waits for a time-out."""
        self._closed = True
        await self.mcp.stop()
        for client in [*self.sessions.values(), *self.singles]:
            self.forget(client)
        await asyncio.gather(*self._ending)

    # -- other replicas -----------------------------------------------------------------------------------

    def elsewhere(self, scope: Scope) -> str | None:
        named = _named(scope) if scope["type"] == "http" else None
        return named if named is not None and named not in self.sessions and self.placed.foreign(named) else None

    async def locate(self, named: str, caller: Caller | None) -> Replica | None:
        if caller is None:
            return None

        async def adopt(note: Document, times: int) -> None:
            self._make_room(caller)
            session = Session(self, caller, named, times)
            session.enter()
            try:
                await session.notes.restore(note)
            finally:
                session.leave()
            self.sessions[named] = session

        try:
            return await self.placed.locate(named, lambda note: replica_notes.is_of(note, named, caller), adopt)
        except Refused as error:
            raise Overloaded(str(error)) from None

    # -- Streamable HTTP ----------------------------------------------------------------------------------

    async def endpoint(self, request: Request) -> ASGIApp:
        try:
            caller = await self._caller(request)
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
                session = self._session(headers, caller)
                self.forget(session)
                await self.placed.drop(session.id)  # no replica creates it again
                return Response(status_code=204)
            _check_stream(headers)
            return self._session(headers, caller).listen(headers.get("last-event-id"))
        except Refused as error:
            return refusal(error.status, error.error, id_=error.id)
        except InterlinguaError as error:
            return refused(error)

    async def _caller(self, request: Request) -> Caller:
        try:
            return await self.auth.authenticate(request.headers)
        except InterlinguaError as error:
            error.refused_message = await began(request)
            raise

    async def _post(self, request: Request, caller: Caller) -> ASGIApp:
        raw = request.scope["headers"]
        headers = by_name(raw)
        body = await read_body(request, self.settings)
        with about(body):
            if not accepts(headers, "application/json", "text/event-stream"):
                told = "an answer may be JSON or an event stream; accept application/json, text/event-stream"
                raise Refused(406, told)
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
        session.enter()
        try:
            return await session.post(asked, body)
        finally:
            session.leave()

    async def _single(self, asked: Asked, body: bytes, caller: Caller) -> ASGIApp:
        self._room(len(self.singles), self.settings.max_requests)
        single = Single(self, caller)
        self.singles.add(single)
        return await single.answer(asked, body)

    def _read(self, headers: Mapping[str, str], body: bytes) -> Asked:
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refused(415, f"the body is {kind or 'of no type'!r}; send application/json")
        return read(body, self.settings.max_batch)

    async def _initialize(self, asked: Asked, body: bytes, caller: Caller) -> Response:
        self._make_room(caller)
        session = Session(self, caller)
        self.sessions[session.id] = session
        session.enter()
        try:
            answer = await session.initialize(asked, body)
        finally:
            session.leave()
        if answer.status_code != 200:
            self.forget(session)
        return answer

    def _session(self, headers: Mapping[str, str], caller: Caller) -> Session:
        wanted = headers.get(SESSION)
        if wanted is None:
            raise Refused(400, "the header Mcp-Session-Id is missing; initialize gives you one")
        found = self.sessions.get(wanted)
        if not isinstance(found, Session) or not _same(found.caller, caller):  # the owner of a session stays secret
            raise Refused(404, "there is no such session; begin with initialize")
        return found

    def _room(self, used: int, limit: int) -> None:
        if self._closed:
            raise Refused(503, "the server stops")
        if used >= limit:
            raise Refused(503, f"{limit} are open already")

    def _make_room(self, caller: Caller) -> None:
        """Forgets a session, because many clients never report that they go: the one that has been silent longest,
        among those of the caller with the most sessions. So a caller that opens sessions again and again displaces no
        other caller, and never holds all of them."""
        limit = self.settings.max_sessions
        count = Counter([caller.id, *(found.caller.id for found in self.sessions.values())])
        alone = has_share(caller, count[caller.id] - 1, limit)
        if alone or len(self.sessions) >= limit:
            idle = [found for found in self.sessions.values() if isinstance(found, Session) and found.free]
            idle = [found for found in idle if not alone or found.caller.id == caller.id]
            if idle:
                self.forget(min(idle, key=lambda found: (-count[found.caller.id], found.idle_since or 0.0)))
            elif alone:
                raise Refused(429, f"you have {count[caller.id] - 1} open already")
        self._room(len(self.sessions), limit)

    # -- HTTP+SSE -----------------------------------------------------------------------------------------

    async def old_stream(self, request: Request) -> ASGIApp:
        try:
            caller = await self._caller(request)
            if request.method != "GET":  # starlette takes HEAD for one
                return _not_allowed("GET")
            _check_stream(request.headers)
            self._make_room(caller)
            session = OldSession(self, caller)
            self.sessions[session.id] = session
            return session.listen(request.scope.get("root_path", "") + "/messages/")
        except Refused as error:
            return refusal(error.status, error.error, id_=error.id)
        except InterlinguaError as error:
            return refused(error)

    async def old_post(self, request: Request) -> ASGIApp:
        try:
            caller = await self._caller(request)
            body = await read_body(request, self.settings)
            with about(body):
                wanted = request.query_params.get("session_id")
                if wanted is None:
                    raise Refused(400, "session_id is missing; the stream tells where to send to")
                found = self.sessions.get(wanted)
                if not isinstance(found, OldSession) or not _same(found.caller, caller):
                    raise Refused(404, "there is no such session; open the stream again")
                return await found.post(self._read(request.headers, body), body)
        except Refused as error:
            return refusal(error.status, error.error, id_=error.id)
        except InterlinguaError as error:
            return refused(error)


def _named(scope: Scope) -> str | None:
    """Returns the session that a request names."""
    if scope["path"].endswith("/messages/"):
        found = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("session_id")
        return found[0] if found else None
    for name, value in scope["headers"]:
        if name == _SESSION:
            told: str = value.decode("latin-1").strip(" \t")
            return told
    return None


def _same(one: Caller, other: Caller) -> bool:
    """Tells if two callers are the same, with the same rights: a token with fewer rights must not gain more through a
    session."""
    return one.id == other.id and set(one.scopes) == set(other.scopes)


def _check_stream(headers: Mapping[str, str]) -> None:
    if not accepts(headers, "text/event-stream"):
        raise Refused(406, "this is an event stream; accept text/event-stream")


def _not_allowed(*methods: str) -> Response:
    return Response(status_code=405, headers={"allow": ", ".join(methods)})


__all__ = ["WebDoor"]
