"""The HTTP app: every door under its prefix on one port, with health, readiness and metrics beside them."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import httpx2
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ..engine.engine import Engine
from ..model.errors import InterlinguaError, Unavailable
from ..protocols import Door, Protocol
from ..security import signatures
from ..security.auth import Authenticator
from ..security.egress import EgressGuard
from ..security.origins import HostPolicy
from ..transports.http import json_response
from .installed import protocols
from .metrics import render

access = logging.getLogger("interlingua.access")


class HttpApp:
    """Puts doors, checks and the engine together. The engine is started and stopped by whoever made it."""

    def __init__(self, engine: Engine, auth: Authenticator, hosts: HostPolicy) -> None:
        self.engine = engine
        self.doors: dict[str, tuple[Protocol, Door]] = {}
        self.ready = True
        routes: list[BaseRoute] = [
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
            Route("/metrics", self._metrics),
        ]
        for protocol in protocols():
            if protocol.door is not None:
                door = protocol.door(engine, auth)
                self.doors[protocol.name] = (protocol, door)
                routes.append(Mount(protocol.prefix, routes=door.routes))
        self.asgi: ASGIApp = _Checked(Starlette(routes=routes, exception_handlers={HTTPException: _no_route}), hosts)

    async def _healthz(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _readyz(self, request: Request) -> Response:
        if not self.ready:
            return PlainTextResponse("stopping\n", 503)
        try:
            await self.engine.store.next_callback()
        except Exception as error:
            return PlainTextResponse(f"the store does not answer: {error}\n", 503)
        return PlainTextResponse("ready\n")

    async def _metrics(self, request: Request) -> Response:
        return PlainTextResponse(render(self.engine), media_type="text/plain; version=0.0.4")


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = f"{request.method} {request.url.path}: {error.detail}"
    return json_response(said, error.status_code, dict(error.headers or {}))


class _Checked:
    """Around everything: Host and Origin are checked before any door, and each request is one line of the log."""

    def __init__(self, app: ASGIApp, hosts: HostPolicy) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._hosts.check(Headers(scope=scope))
        except InterlinguaError as error:
            await json_response(error.message, 403)(scope, receive, send)
            return
        if not access.isEnabledFor(logging.INFO):
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def noted(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            took = (time.perf_counter() - began) * 1000
            extra = {"method": scope["method"], "path": scope["path"], "status": status, "ms": round(took, 1)}
            access.info("%s %s %s", scope["method"], scope["path"], status, extra={"fields": extra})


async def fetch(url: str) -> bytes:
    """A document from an address that the owner gave (an issuer's keys)."""
    async with httpx2.AsyncClient(timeout=10.0) as client:
        answer = await client.get(url)
        answer.raise_for_status()
        return answer.content


class Webhooks:
    """Sends callbacks over HTTP, through the egress guard, with a delivery id and a signature."""

    def __init__(self, guard: EgressGuard, secret: str | None) -> None:
        self._client = guard.client(timeout=10.0)
        self._secret = secret

    async def send(self, url: str, body: Any, delivery: int) -> None:
        content = json.dumps(body, allow_nan=False).encode()
        headers = {"content-type": "application/json", "x-interlingua-delivery": str(delivery)}
        if self._secret is not None:
            headers |= signatures.headers(self._secret, str(delivery), int(time.time()), content)
        try:
            answer = await self._client.post(url, content=content, headers=headers)
        except httpx2.HTTPError as error:
            raise Unavailable(f"{type(error).__name__}: {error}") from error
        if not 200 <= answer.status_code < 300:
            raise Unavailable(f"the receiver answered {answer.status_code}")

    async def close(self) -> None:
        await self._client.aclose()
