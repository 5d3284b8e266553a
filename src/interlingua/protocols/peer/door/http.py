"""The HTTP API of a node: every path, its permissions, and the common frame of all operations.

It has two surfaces. The control API is the owner's (see `control_api`). The door is for callers of the shared app: the
same paths reach this node's agents, and the owner's operations are absent.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

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
from ..node.tasks import Surface
from ..translate.errors import INVALID, Refusal
from . import operations_card as cards
from . import operations_messages as messages
from . import operations_peers as peers
from . import operations_tasks as tasks
from .api import Api, Handler, Operation, refusal
from .http_streams import SocketStream, StreamSettings, place

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


_ON_TASKS: tuple[tuple[str, str, Handler, scopes.Action], ...] = (
    ("POST", "update", tasks.update_task, "run"),
    ("POST", "cancel", tasks.cancel_task, "cancel"),
    ("POST", "continue", tasks.continue_task, "answer"),
    ("GET", "wait", tasks.wait_task, "read"),
    ("GET", "subscribe", tasks.subscribe, "read"),
)
_OWNERS: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/send", messages.send_legacy),
    ("POST", "/reply", messages.reply),
    ("POST", "/message:typing", messages.typing),
    ("PATCH", "/card", cards.patch_card),
    ("PATCH", "/.well-known/acp.json", cards.patch_card),
    ("PATCH", "/skills/{id:path}/limitations", cards.patch_skill),
    ("POST", "/extensions/register", cards.register_extension),
    ("POST", "/extensions/unregister", cards.unregister_extension),
    ("POST", "/availability/heartbeat", cards.heartbeat),
    ("GET", "/link", peers.link),
    ("GET", "/discover", peers.discover),
    ("GET", "/offline-queue", peers.offline_queue),
    ("GET", "/peers", peers.list_peers),
    ("POST", "/peers/connect", peers.connect),
    ("POST", "/peers/broadcast", peers.broadcast),
    ("GET", "/peer/verify", peers.verify_peer),
    ("GET", "/peers/{id}/card", peers.peer_card),
    ("GET", "/peers/{id}/messages", messages.peer_messages),
    ("POST", "/peers/{id}/ping", peers.ping),
    *(
        (method, base + rest, handler)
        for base in ("/peer/{id}", "/peers/{id}")
        for method, rest, handler in (
            ("POST", "/send", messages.send_to_peer),
            ("POST", "/rename", peers.rename),
            ("GET", "", peers.get_peer),
            ("DELETE", "", peers.forget_peer),
        )
    ),
)
_TASK = "/tasks/{id:path}"

OPERATIONS = [
    Operation("POST", "/message:send", messages.send_message, "run"),
    Operation("GET", "/message:recv", messages.receive),
    Operation("GET", "/recv", messages.receive),
    Operation("GET", "/messages", messages.messages),
    Operation("GET", "/context/{context:path}/messages", messages.context_messages),
    Operation("GET", "/history", messages.history),
    Operation("GET", "/wait/{id:path}", messages.wait_reply),
    Operation("GET", "/stream", tasks.stream),
    Operation("GET", "/tasks", tasks.list_tasks),
    Operation("POST", "/tasks", tasks.create_task, "run"),
    Operation("POST", "/tasks/create", tasks.create_task, "run"),
    *(
        Operation(method, f"{_TASK}{mark}{name}", handler, action)
        for mark in (":", "/")
        for method, name, handler, action in _ON_TASKS
    ),
    Operation("GET", _TASK, tasks.get_task),
    Operation("PUT", _TASK, tasks.update_task, "run"),
    Operation("DELETE", _TASK, tasks.delete_task, "delete"),
    Operation("GET", "/status", peers.status),
    Operation("GET", "/skills", cards.list_skills),
    Operation("POST", "/skills/query", cards.query_skills),
    Operation("GET", "/extensions", cards.list_extensions),
    Operation("GET", "/availability", cards.availability),
    Operation("GET", "/verify/card", cards.verify_own_card),
    Operation("POST", "/verify/card", cards.verify_card),
    Operation("GET", "/card", cards.card, None, public=True),
    Operation("GET", "/.well-known/acp.json", cards.card, None, public=True),
    Operation("GET", "/.well-known/jwks.json", cards.jwks, None, public=True),
    Operation("GET", "/.well-known/did.json", cards.did, None, public=True),
    Operation("GET", "/files/{id}", cards.file, None, public=True),
    *(Operation(method, path, handler, None, owner=True) for method, path, handler in _OWNERS),
]


def routes(api: Api) -> list[BaseRoute]:
    found: list[BaseRoute] = []
    for row in OPERATIONS:
        route = Route(row.path, _endpoint(api, row), methods=[row.method])
        if row.path.startswith(_ONCE) or row.path.endswith(_ONCE):
            route.methods = {row.method}
        found.append(route)
    elsewhere = _Elsewhere([route for route in found if isinstance(route, Route)])
    socket = WebSocketRoute("/ws/stream", partial(_socket_stream, api))
    return [*found, socket, Route("/{path:path}", elsewhere)]


def _endpoint(api: Api, operation: Operation) -> Endpoint:
    handler = operation.handler

    async def endpoint(request: Request) -> ASGIApp:
        try:
            surface = await _admitted(api, request, operation)
            answer = await handler(api, request, surface)
        except InterlinguaError as error:
            answer = refusal(error)
        except Exception:
            log.exception("%s %s failed", request.method, request.url.path)
            answer = refusal(InterlinguaError("something went wrong here; the log of the node says what"))
        return dressed(request.scope, answer)

    return endpoint


async def _admitted(api: Api, request: Request, operation: Operation) -> Surface:
    try:
        surface = await api.surface(request)
    except Unauthenticated:
        if not operation.public:
            raise
        surface = _NOBODY
    if surface.door:
        if operation.owner:
            raise NotFound(
                f"{request.method} {operation.path} is the owner's: it is on the control API of the node, and not here"
            )
        if operation.action is not None:
            scopes.require(surface.caller, operation.action)
    return surface


async def _socket_stream(api: Api, socket: WebSocket) -> None:
    """Everything that happens, as frames of a WebSocket."""
    try:
        surface = await api.surface(socket)
        if surface.door:
            scopes.require(surface.caller, "read")
        stream = await api.streams.listener(SocketStream, surface, place(socket))
    except InterlinguaError as error:
        await socket.send_denial_response(refusal(error))
        return
    await stream.serve(socket)


class PeerDoor(Api):
    """The door of a node on the shared app: binding D."""

    def __init__(self, node: Node, auth: Authenticator, settings: StreamSettings | None = None) -> None:
        super().__init__(node, settings)
        self.auth = auth

    async def surface(self, request: Request | WebSocket) -> Surface:
        caller = await self.auth.authenticate(request.headers)
        return Surface.of_caller(caller, caller == ANONYMOUS)

    def auth_schemes(self) -> list[str]:
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


__all__ = ["PeerDoor", "routes"]
