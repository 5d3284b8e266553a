"""The objects that every operation of the HTTP API works with, and how queries and bodies are read.

An operation is a function of the API, a request and a surface. The table in `http` says which paths lead to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from ....doors import query
from ....doors.endpoint import Operation
from ....model.errors import InvalidRequest, NotFound
from ....model.run import Caller
from ....security import scopes
from ....security.errors import Unauthenticated
from ....transports.http.body import HttpLimits, WrongContentType, decode_json, header, json_response, read_body
from ..node.tasks import Surface
from ..wire import frames
from .http_streams import NodeStreams, StreamSettings
from .send import DoorSending

if TYPE_CHECKING:
    from ..node.node import Node

# Content types that a web page of another site can send without a preflight request. A missing one counts, too.
_SIMPLE = frozenset({"", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"})
_NOBODY = Surface(Caller("nobody", scopes=("do:nothing",)), True, "caller:nobody")


class Api(ABC):
    """A node behind its HTTP API. The two surfaces, control API and door, differ in who asks."""

    def __init__(self, node: Node, settings: StreamSettings | None = None) -> None:
        self._settings = settings
        self.use(node)

    def use(self, node: Node) -> None:
        """Serves this node from now on, at the same paths."""
        self.node = node
        self.limits = HttpLimits(max_body_bytes=2 * node.settings.max_msg_bytes + 65_536)
        self.streams = NodeStreams(node, self._settings)
        self.door_sending = DoorSending(node)

    async def admit(self, request: Request, operation: PeerOperation) -> Surface:
        """Returns the surface for the caller of an operation, if it may call it."""
        try:
            surface = await self.surface(request)
        except Unauthenticated:
            if not operation.public:
                raise
            surface = _NOBODY
        if surface.door:
            if operation.owner:
                raise NotFound(
                    f"{request.method} {operation.path} is the owner's: it is on the control API of the node, and not "
                    "here"
                )
            if operation.action is not None:
                scopes.require(surface.caller, operation.action)
        return surface

    @abstractmethod
    async def surface(self, request: Request | WebSocket) -> Surface:
        """Returns the surface for the caller of a request. Raises where the caller is not known."""

    @abstractmethod
    def auth_schemes(self) -> list[str]:
        """Returns the names of the authentication schemes."""

    async def close(self) -> None:
        """Ends all streams when the server stops."""
        self.streams.close()

    async def body(self, request: Request) -> Any:
        """Returns the body, with any content type, because programs with curl send all kinds. Refuses the body of a web
        page that sent no preflight request. An empty body is an empty object."""
        data = await read_body(request, self.limits)
        origin = header(request, b"origin")
        if origin is not None and origin.partition("://")[2] != header(request, b"host"):
            kind = (header(request, b"content-type") or "").partition(";")[0].strip().lower()
            if kind in _SIMPLE:
                raise WrongContentType(f"from a web page, the body is application/json and not {kind or 'of no type'}")
        return decode_json(data, object) if data.strip() else {}

    async def json_object(self, request: Request) -> dict[str, Any]:
        """Reads the body, which must be an object."""
        body = await self.body(request)
        if not isinstance(body, dict):
            raise InvalidRequest(f"the body is a JSON object, and this is {type(body).__name__}")
        return body


class PeerOperation(Operation[Api, Surface], frozen=True):
    owner: bool = False  # of the control API alone


# -- queries --------------------------------------------------------------------------------------------------


def filled(request: Request) -> query.Params:
    """Returns the query without empty parameters, which count as left out."""
    return {name: value for name, value in request.query_params.items() if value}


def newest_first(params: query.Params, default: bool) -> bool:
    order = params.get("sort", "").lower().removeprefix("created_at").lstrip(":_- ")
    if not order:
        return default
    if order not in ("asc", "desc", "oldest", "newest"):
        raise InvalidRequest(f"/sort is asc or desc, got {order[:80]!r}", path="/sort")
    return order in ("desc", "newest")


def moment(params: query.Params, name: str) -> str | None:
    """Returns a time of the query, in the format of our times."""
    time = query.time(params, name)
    return None if time is None else frames.stamp(time)


def listing(request: Request, name: str, items: list[Any], **beside: Any) -> Response:
    """Returns a list as an object; bare where `format=array` asks for that."""
    bare = query.choice(request.query_params, "format", ("object", "array"), "object") == "array"
    return json_response(items if bare else {name: items, **beside})
