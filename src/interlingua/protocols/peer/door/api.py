"""The objects that every operation of the HTTP API works with, and how queries and bodies are read.

An operation is a function of the API, a request and a surface. The table in `http` says which paths lead to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from ....model.errors import InterlinguaError, Invalid, InvalidRequest
from ....security import scopes
from ....transports import json_text
from ....transports.http.body import HttpLimits, WrongContentType, decode_json, header, json_response, read_body
from ..node.tasks import Surface
from ..translate.errors import envelope
from ..wire import frames
from .http_streams import Streams, StreamSettings
from .send import DoorSending

if TYPE_CHECKING:
    from ..node.node import Node

# Content types that a web page of another site can send without a preflight request. A missing one counts, too.
_SIMPLE = frozenset({"", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"})
_BIGGEST = 10**15


class Api(ABC):
    """A node behind its HTTP API. The two surfaces, control API and door, differ in who asks."""

    def __init__(self, node: Node, settings: StreamSettings | None = None) -> None:
        self._settings = settings
        self.use(node)

    def use(self, node: Node) -> None:
        """Serves this node from now on, at the same paths."""
        self.node = node
        self.limits = HttpLimits(max_body_bytes=2 * node.settings.max_msg_bytes + 65_536)
        self.streams = Streams(node, self._settings)
        self.door_sending = DoorSending(node)

    @abstractmethod
    async def surface(self, request: Request | WebSocket) -> Surface:
        """Returns the surface for the caller of a request. Raises where the caller is not known."""

    @abstractmethod
    def auth_schemes(self) -> list[str]:
        """Returns the names of the authentication schemes."""

    async def close(self) -> None:
        """Ends all streams when the server stops."""
        await self.streams.close()

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
        """The body, which must be an object."""
        body = await self.body(request)
        if not isinstance(body, dict):
            raise InvalidRequest(f"the body is a JSON object, and this is {type(body).__name__}")
        return body


Handler = Callable[[Api, Request, Surface], Awaitable[ASGIApp]]


class Operation(msgspec.Struct, frozen=True):
    """A row of the table of the API: a way, and the function that answers there."""

    method: str
    path: str
    handler: Handler
    action: scopes.Action | None = "read"  # the permission that a caller of the door needs; None: none
    public: bool = False  # also for callers without credentials
    owner: bool = False  # of the control API alone


def refusal(error: InterlinguaError, message_id: Any = None) -> Response:
    """Returns an error in its envelope."""
    if message_id is None and isinstance(error, Invalid) and error.refused_message:
        message_id = json_text.members(error.refused_message, "message_id").get("message_id")
    status, body = envelope(error, message_id=message_id if isinstance(message_id, str) else None)
    challenge = getattr(error, "challenge", None)
    return json_response(body, status, {"www-authenticate": challenge} if challenge else None)


# -- queries --------------------------------------------------------------------------------------------------


def number(request: Request, names: tuple[str, ...], default: int, low: int = 0, high: int = _BIGGEST) -> int:
    """Returns a whole number of the query, by the first of its names that is there. A number that is too high is
    lowered to the limit."""
    for name in names:
        given = request.query_params.get(name)
        if given is None or given == "":
            continue
        if not (given.isascii() and given.isdecimal()) or len(given) > 15 or int(given) < low:
            raise InvalidRequest(f"/{name} is a whole number from {low} on, got {given[:80]!r}", path=f"/{name}")
        return min(int(given), high)
    return default


def newest_first(request: Request, default: bool) -> bool:
    given = request.query_params.get("sort", "").lower().removeprefix("created_at").lstrip(":_- ")
    if not given:
        return default
    if given not in ("asc", "desc", "oldest", "newest"):
        raise InvalidRequest(f"/sort is asc or desc, got {given[:80]!r}", path="/sort")
    return given in ("desc", "newest")


def moment(request: Request, name: str) -> str | None:
    """Returns a time of the query, in the format of our times."""
    given = request.query_params.get(name)
    if not given:
        return None
    try:
        seconds = frames.seconds_of(float(given) * 1000)
    except ValueError:
        seconds = frames.seconds_of(given)
    if seconds is None:
        raise InvalidRequest(f"/{name} is a time of ISO 8601, got {given[:80]!r}", path=f"/{name}")
    return frames.stamp(int(seconds * 1_000_000))


def listing(request: Request, name: str, items: list[Any], **beside: Any) -> Response:
    """Returns a list as an object; bare where `format=array` asks for that."""
    wanted = request.query_params.get("format", "object")
    if wanted not in ("object", "array"):
        raise InvalidRequest(f"/format is object or array, got {wanted[:80]!r}", path="/format")
    return json_response(items if wanted == "array" else {name: items, **beside})
