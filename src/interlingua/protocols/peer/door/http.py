"""The HTTP API of a node: every path, its permissions, and the common frame of all operations.

It has two surfaces. The control API is the owner's (see `control_api`). The door is for callers of the shared app: the
same paths reach this node's agents, and the owner's operations are absent.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from ....model.errors import InterlinguaError, NotFound
from ....model.run import Caller
from ....security import scopes
from ....security.auth import ANONYMOUS, Authenticator
from ....security.errors import Unauthenticated
from ....transports.http.body import HttpLimits
from ..node.tasks import Surface
from ..translate.errors import INVALID, Refusal
from .http_streams import FeedStream, SocketStream, Streams, StreamSettings, place
from .operation import Handler, refusal
from .operations_card import CardOperations
from .operations_messages import Messages
from .operations_peers import PeerOperations
from .operations_tasks import Tasks
from .send import DoorSending

if TYPE_CHECKING:
    from ..node.node import Node

log = logging.getLogger("interlingua.peer")

Endpoint = Callable[[Request], Awaitable[ASGIApp]]

# RFC 8615 wants such documents to be fetched afresh, under their own media type.
WELL_KNOWN = [
    (b"cache-control", b"no-cache, no-store"),
    (b"vary", b"Accept"),
    (b"x-content-type-options", b"nosniff"),
]
_NOBODY = Surface(Caller("nobody", scopes=("do:nothing",)), True, "caller:nobody")
_ONCE = (
    "/message:recv",
    "/recv",
    "/stream",
    "/wait/",
    ":subscribe",
    "/subscribe",
    ":wait",
    "/wait",
)  # a HEAD would use them up


class Way(msgspec.Struct):
    """A path, and its operation."""

    method: str
    path: str
    handler: Handler
    action: scopes.Action | None = "read"  # the permission that a caller of the door needs; None: none
    owner: bool = False  # of the control API alone
    open: bool = False  # also for callers without credentials


class Api(Messages, Tasks, PeerOperations, CardOperations):
    """All operations, each with its path. The two surfaces differ in the caller."""

    def __init__(self, node: Node, settings: StreamSettings | None = None) -> None:
        self.node = node
        self.limits = HttpLimits(max_body_bytes=2 * node.settings.max_msg_bytes + 65_536)
        self.streams = Streams(node, settings)
        self.door_sending = DoorSending(node)

    async def surface(self, request: Request | WebSocket) -> Surface:
        """Returns the surface for the caller of a request. Raises where the caller is not known."""
        raise NotImplementedError

    async def close(self) -> None:
        """Ends all streams when the server stops."""
        await self.streams.close()

    def ways(self) -> list[Way]:
        task, peers = "/tasks/{id:path}", "/peers/{id}"
        found = [
            Way("POST", "/message:send", self.send_message, "run"),
            Way("GET", "/message:recv", self.receive),
            Way("GET", "/recv", self.receive),
            Way("GET", "/messages", self.messages),
            Way("GET", "/context/{context:path}/messages", self.context_messages),
            Way("GET", "/history", self.history),
            Way("GET", "/wait/{id:path}", self.wait_reply),
            Way("GET", "/stream", self.stream),
            Way("GET", "/tasks", self.list_tasks),
            Way("POST", "/tasks", self.create_task, "run"),
            Way("POST", "/tasks/create", self.create_task, "run"),
        ]
        for mark in (":", "/"):
            found += [
                Way("POST", f"{task}{mark}update", self.update_task, "run"),
                Way("POST", f"{task}{mark}cancel", self.cancel_task, "cancel"),
                Way("POST", f"{task}{mark}continue", self.continue_task, "answer"),
                Way("GET", f"{task}{mark}wait", self.wait_task),
                Way("GET", f"{task}{mark}subscribe", self.subscribe),
            ]
        found += [
            Way("GET", task, self.get_task),
            Way("PUT", task, self.update_task, "run"),
            Way("DELETE", task, self.delete_task, "delete"),
            Way("GET", "/status", self.status),
            Way("GET", "/skills", self.list_skills),
            Way("POST", "/skills/query", self.query_skills),
            Way("GET", "/extensions", self.list_extensions),
            Way("GET", "/availability", self.availability),
            Way("GET", "/verify/card", self.verify_own_card),
            Way("POST", "/verify/card", self.verify_card),
            Way("GET", "/card", self.card, None, open=True),
            Way("GET", "/.well-known/acp.json", self.card, None, open=True),
            Way("GET", "/.well-known/jwks.json", self.jwks, None, open=True),
            Way("GET", "/.well-known/did.json", self.did, None, open=True),
            Way("GET", "/files/{id}", self.file, None, open=True),
        ]
        owners: list[tuple[str, str, Handler]] = [
            ("POST", "/send", self.send_legacy),
            ("POST", "/reply", self.reply),
            ("POST", "/message:typing", self.typing),
            ("PATCH", "/card", self.patch_card),
            ("PATCH", "/.well-known/acp.json", self.patch_card),
            ("PATCH", "/skills/{id:path}/limitations", self.patch_skill),
            ("POST", "/extensions/register", self.register_extension),
            ("POST", "/extensions/unregister", self.unregister_extension),
            ("POST", "/availability/heartbeat", self.heartbeat),
            ("GET", "/link", self.link),
            ("GET", "/discover", self.discover),
            ("GET", "/offline-queue", self.offline_queue),
            ("GET", "/peers", self.list_peers),
            ("POST", "/peers/connect", self.connect),
            ("POST", "/peers/broadcast", self.broadcast),
            ("GET", "/peer/verify", self.verify_peer),
            ("GET", f"{peers}/card", self.peer_card),
            ("GET", f"{peers}/messages", self.peer_messages),
            ("POST", f"{peers}/ping", self.ping),
        ]
        for base in ("/peer/{id}", peers):
            owners += [
                ("POST", f"{base}/send", self.send_to_peer),
                ("POST", f"{base}/rename", self.rename),
                ("GET", base, self.get_peer),
                ("DELETE", base, self.forget_peer),
            ]
        return found + [Way(method, path, handler, None, owner=True) for method, path, handler in owners]

    @property
    def routes(self) -> list[BaseRoute]:
        routes: list[BaseRoute] = []
        for way in self.ways():
            route = Route(way.path, self._endpoint(way), methods=[way.method])
            if way.path.startswith(_ONCE) or way.path.endswith(_ONCE):
                route.methods = {way.method}
            routes.append(route)
        elsewhere = _Elsewhere([route for route in routes if isinstance(route, Route)])
        return [*routes, WebSocketRoute("/ws/stream", self.socket_stream), Route("/{path:path}", elsewhere)]

    def _endpoint(self, way: Way) -> Endpoint:
        handler = way.handler

        async def endpoint(request: Request) -> ASGIApp:
            try:
                surface = await self._admitted(request, way)
                answer = await handler(request, surface)
            except InterlinguaError as error:
                answer = refusal(error)
            except Exception:
                log.exception("%s %s failed", request.method, request.url.path)
                answer = refusal(InterlinguaError("something went wrong here; the log of the node says what"))
            return dressed(request.scope, answer)

        return endpoint

    async def _admitted(self, request: Request, way: Way) -> Surface:
        try:
            surface = await self.surface(request)
        except Unauthenticated:
            if not way.open:
                raise
            surface = _NOBODY
        if surface.door:
            if way.owner:
                raise NotFound(
                    f"{request.method} {way.path} is the owner's: it is on the control API of the node, and not here"
                )
            if way.action is not None:
                scopes.require(surface.caller, way.action)
        return surface

    # -- streams ------------------------------------------------------------------------------------------

    async def stream(self, request: Request, surface: Surface) -> ASGIApp:
        return await self.streams.listener(FeedStream, surface, place(request))

    async def socket_stream(self, socket: WebSocket) -> None:
        try:
            surface = await self.surface(socket)
            if surface.door:
                scopes.require(surface.caller, "read")
            stream = await self.streams.listener(SocketStream, surface, place(socket))
        except InterlinguaError as error:
            await socket.send_denial_response(refusal(error))
            return
        await stream.serve(socket)


class PeerDoor(Api):
    """The door of a node on the shared app: binding D."""

    def __init__(self, node: Node, auth: Authenticator, settings: StreamSettings | None = None) -> None:
        super().__init__(node, settings)
        self.auth = auth
        self._settings = settings

    def serve_node(self, node: Node) -> None:
        """Serves another node at the same paths."""
        super().__init__(node, self._settings)

    async def surface(self, request: Request | WebSocket) -> Surface:
        caller = await self.auth.authenticate(request.headers)
        return Surface.of_caller(caller, caller == ANONYMOUS)

    def _auth_schemes(self) -> list[str]:
        named = [scheme["scheme"] if scheme["type"] == "http" else scheme["type"] for scheme in self.auth.schemes()]
        return list(dict.fromkeys(named)) or ["none"]


class _Elsewhere:
    """Answers paths that do not exist, also in the envelope."""

    def __init__(self, routes: list[Route]) -> None:
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await dressed(scope, self._answer(scope))(scope, receive, send)

    def _answer(self, scope: Scope) -> Response:
        allowed: set[str] = set()
        for route in self._routes:
            if route.matches(scope)[0] is not Match.NONE:
                allowed |= route.methods or set()
        method, path = scope["method"], _below(scope)
        if method == "OPTIONS":
            listed = ", ".join(sorted(allowed | {"OPTIONS"})) if allowed else "DELETE, GET, OPTIONS, PATCH, POST, PUT"
            return Response(status_code=204, headers={"allow": listed})
        if not allowed:
            return refusal(NotFound(f"there is nothing at {path[:200]}"))
        known = ", ".join(sorted(allowed | {"OPTIONS"}))
        answer = refusal(Refusal(INVALID, 405, f"{method} cannot be done with {path[:200]}; there are: {known}"))
        answer.headers["allow"] = known
        return answer


def _below(scope: Scope) -> str:
    """Returns the path below the mount point of the door."""
    path, root = scope["path"], scope.get("root_path", "")
    return str(path[len(root) :] if root and path.startswith(root) else path)


def dressed(scope: Scope, answer: ASGIApp) -> ASGIApp:
    """Wraps an answer with the headers that belong to its path."""
    if isinstance(answer, Response) and _below(scope).startswith("/.well-known/"):
        names = {name for name, _ in WELL_KNOWN}
        answer.raw_headers = [header for header in answer.raw_headers if header[0] not in names] + WELL_KNOWN
    return answer


__all__ = ["Api", "PeerDoor"]
