"""The HTTP API of a node: every path, its permissions, and the common frame of all operations.

It has two surfaces. The control API is the owner's (see `control_api`). The door is for callers of the shared app: the
same paths reach this node's agents, and the owner's operations are absent.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from ....doors import endpoint
from ....model.errors import InterlinguaError, NotFound
from ....security import scopes
from ....security.auth import ANONYMOUS, Authenticator
from ..node.tasks import Surface
from ..translate.errors import INVALID, Refusal
from . import operations_card as cards
from . import operations_messages as messages
from . import operations_peers as peers
from . import operations_tasks as tasks
from . import well_known
from .api import Api, PeerOperation
from .errors import ERRORS
from .http_streams import SocketStream, StreamSettings, place

if TYPE_CHECKING:
    from ..node.node import Node

log = logging.getLogger("interlingua.peer")

_OWNERS = (
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
    PeerOperation("POST", "/message:send", messages.send_message, "run"),
    PeerOperation("GET", "/message:recv", messages.receive, "read", head=False),
    PeerOperation("GET", "/recv", messages.receive, "read", head=False),
    PeerOperation("GET", "/messages", messages.messages, "read"),
    PeerOperation("GET", "/context/{context:path}/messages", messages.context_messages, "read"),
    PeerOperation("GET", "/history", messages.history, "read"),
    PeerOperation("GET", "/wait/{id:path}", messages.wait_reply, "read", head=False),
    PeerOperation("GET", "/stream", tasks.stream, "read", head=False),
    PeerOperation("GET", "/tasks", tasks.list_tasks, "read"),
    PeerOperation("POST", "/tasks", tasks.create_task, "run"),
    PeerOperation("POST", "/tasks/create", tasks.create_task, "run"),
    *(
        operation
        for base in (f"{_TASK}:", f"{_TASK}/")
        for operation in (
            PeerOperation("POST", f"{base}update", tasks.update_task, "run"),
            PeerOperation("POST", f"{base}cancel", tasks.cancel_task, "cancel"),
            PeerOperation("POST", f"{base}continue", tasks.continue_task, "answer"),
            PeerOperation("GET", f"{base}wait", tasks.wait_task, "read", head=False),
            PeerOperation("GET", f"{base}subscribe", tasks.subscribe, "read", head=False),
        )
    ),
    PeerOperation("GET", _TASK, tasks.get_task, "read"),
    PeerOperation("PUT", _TASK, tasks.update_task, "run"),
    PeerOperation("DELETE", _TASK, tasks.delete_task, "delete"),
    PeerOperation("GET", "/status", peers.status, "read"),
    PeerOperation("GET", "/skills", cards.list_skills, "read"),
    PeerOperation("POST", "/skills/query", cards.query_skills, "read"),
    PeerOperation("GET", "/extensions", cards.list_extensions, "read"),
    PeerOperation("GET", "/availability", cards.availability, "read"),
    PeerOperation("GET", "/verify/card", cards.verify_own_card, "read"),
    PeerOperation("POST", "/verify/card", cards.verify_card, "read"),
    PeerOperation("GET", "/card", cards.card, public=True),
    PeerOperation("GET", "/.well-known/acp.json", cards.card, public=True),
    PeerOperation("GET", "/.well-known/jwks.json", cards.jwks, public=True),
    PeerOperation("GET", "/.well-known/did.json", cards.did, public=True),
    PeerOperation("GET", "/files/{id}", cards.file, public=True),
    *(PeerOperation(method, path, handler, owner=True) for method, path, handler in _OWNERS),
]


def routes(api: Api) -> list[BaseRoute]:
    routes_ = endpoint.routes(api, OPERATIONS, api.admit, ERRORS, log)
    socket = WebSocketRoute("/ws/stream", partial(_socket_stream, api))
    return [*routes_, socket, Route("/{path:path}", _Elsewhere(routes_))]


async def _socket_stream(api: Api, socket: WebSocket) -> None:
    """Streams all events of a surface as frames of a WebSocket."""
    try:
        surface = await api.surface(socket)
        if surface.door:
            scopes.require(surface.caller, "read")
        stream = await api.streams.subscribe(SocketStream, surface, place(socket))
    except InterlinguaError as error:
        await socket.send_denial_response(ERRORS.response(error, socket))
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
        await self._answer(HTTPConnection(scope))(scope, receive, send)

    def _answer(self, request: HTTPConnection) -> Response:
        allowed: set[str] = set()
        for route in self._routes:
            if route.matches(request.scope)[0] is not Match.NONE:
                allowed |= route.methods or set()
        method, path = request.scope["method"], well_known.path_below(request.scope)
        if method == "OPTIONS":
            listed = ", ".join(sorted(allowed | {"OPTIONS"})) if allowed else "DELETE, GET, OPTIONS, PATCH, POST, PUT"
            return Response(status_code=204, headers={"allow": listed, **well_known.headers(request)})
        if not allowed:
            return ERRORS.response(NotFound(f"there is nothing at {path[:200]}"), request)
        known = ", ".join(sorted(allowed | {"OPTIONS"}))
        refusal = Refusal(INVALID, 405, f"{method} cannot be done with {path[:200]}; there are: {known}")
        answer = ERRORS.response(refusal, request)
        answer.headers["allow"] = known
        return answer


__all__ = ["PeerDoor", "routes"]
