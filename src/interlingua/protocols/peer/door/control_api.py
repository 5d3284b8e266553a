"""The control API: the owner's surface of a node, with the paths at the root, on a port of its own.

Every client that can reach it has the owner's rights. So it answers to its own host names alone, takes nothing from web
pages of others, allows no page to read its answers, and requires a token wherever it is not on loopback.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, Request
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from ....model.errors import InterlinguaError
from ....security.errors import Unauthenticated
from ....security.headers import single
from ....security.origins import HostPolicy
from ....transports.http.fixed_routes import IndexedRouter
from ..node.tasks import Surface
from .api import Api
from .errors import ERRORS
from .http import routes
from .http_streams import StreamSettings

if TYPE_CHECKING:
    from ..node.node import Node

_OWNER = Surface()


class Control(Api):
    def __init__(self, node: Node, token: str | None, settings: StreamSettings | None = None) -> None:
        super().__init__(node, settings)
        self._token = token

    async def surface(self, request: Request | WebSocket) -> Surface:
        if self._token is not None:
            self._check(request.headers, self._token)
        return _OWNER

    @staticmethod
    def _check(headers: Mapping[str, str], token: str) -> None:
        scheme, _, token_sent = (single(headers, "authorization") or "").partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthenticated('This node wants its token, as "Authorization: Bearer TOKEN"', rejected=False)
        if not hmac.compare_digest(token_sent.strip().encode("utf-8", "surrogateescape"), token.encode()):
            raise Unauthenticated("The token is not that of this node")

    def auth_schemes(self) -> list[str]:
        return ["none"] if self._token is None else ["bearer"]


class ControlApp:
    """An ASGI application."""

    def __init__(self, api: Api, hosts: HostPolicy) -> None:
        self._api = api
        self._hosts = hosts
        self._router = IndexedRouter(routes(api))
        # The paths that programs use all the time need no search.
        self._fixed = {way: route.endpoint for way, route in self._router.fixed.items()}
        self._welcome: set[tuple[tuple[bytes, bytes], ...]] = set()

    async def close(self) -> None:
        await self._api.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        try:
            self._check(scope)
        except InterlinguaError as error:
            answer = ERRORS.response(error, HTTPConnection(scope))
            if scope["type"] == "websocket":
                await WebSocket(scope, receive, send).send_denial_response(answer)
            else:
                await answer(scope, receive, send)
            return
        endpoint = self._fixed.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if endpoint is None:
            await self._router(scope, receive, send)
            return
        scope["path_params"] = {}
        response = await endpoint(Request(scope, receive))
        await response(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        """Checks Host and Origin. A pair that passed once passes again without being parsed again."""
        checked = tuple(header for header in scope["headers"] if header[0] in (b"host", b"origin"))
        if checked in self._welcome:
            return
        self._hosts.check(Headers(scope=scope))
        if len(self._welcome) < 1000 and sum(len(value) for _, value in checked) < 512:
            self._welcome.add(checked)


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return


def control_app(
    node: Node,
    token: str | None = None,
    hosts: HostPolicy | None = None,
    streams: StreamSettings | None = None,
) -> ControlApp:
    """Returns the app for a node; by its settings, where nothing else is given."""
    settings = node.settings
    required_token = token if token is not None else settings.http_token
    policy = hosts if hosts is not None else HostPolicy.for_bind(settings.http_host)
    return ControlApp(Control(node, required_token, streams), policy)
