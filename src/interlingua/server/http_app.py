"""Builds the HTTP app: every door under its prefix on one port, with health, readiness and metrics beside them."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx2
import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from ..control.api import ControlApi
from ..control.app import control_app
from ..control.wire import PREFIX as CONTROL_PREFIX
from ..doors.settings import DoorSettings
from ..engine.engine import Engine
from ..engine.ids import now
from ..engine.ports import NotTaken
from ..model.errors import DefinitionError, InterlinguaError, Unavailable
from ..model.run import Caller
from ..protocols.base import Door, Opening, Protocol
from ..protocols.installed import protocols
from ..runtime.closing import close_all
from ..security import webhook_signatures
from ..security.auth import Authenticator
from ..security.egress import EgressGuard
from ..security.origins import HostPolicy
from ..security.signing_key import SigningKey
from ..transports.http.body import json_response
from ..transports.http.fixed_routes import IndexedRouter
from . import audit, cors
from .health import Probes
from .logs import FOR_MACHINES, asker
from .replicas.forward import Passing

access = logging.getLogger("interlingua.access")
log = logging.getLogger("interlingua.http")

Endpoint = Callable[[Request], Awaitable[Response]]

_WORTH_KEEPING = 512  # bytes of headers; a browser's are shorter
_PROBES = ("/healthz", "/readyz", "/metrics", "/mounts")


class HttpApp:
    """Puts doors, checks and the engine together. Its maker starts and stops the engine."""

    def __init__(
        self, engine: Engine, auth: Authenticator, hosts: HostPolicy,
        settings: Mapping[str, DoorSettings] | None = None, audit_key: Path | None = None,
    ) -> None:  # fmt: skip
        """`settings`: those of doors, by protocol; other doors have their defaults. `audit_key`: the file of the key
        that signs audit exports, made when it is first needed."""
        self.engine = engine
        self.probes = Probes(engine)
        self._auth = auth
        control = ControlApi(engine, auth, mounts=lambda: self.probes.mounts(), export=self._export)
        self._audit_key = audit_key
        self.doors: dict[str, tuple[Protocol, Door]] = {}
        self._working = contextlib.AsyncExitStack()
        routes: list[BaseRoute] = [
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
            Route("/metrics", self._metrics),
            Route("/mounts", self._mounts),
            Mount(CONTROL_PREFIX, app=control_app(control)),
        ]
        routers: dict[str, IndexedRouter] = {}
        for protocol in protocols():
            own = (settings or {}).get(protocol.name)
            if protocol.door and (own is None or own.enabled):
                door: Door = protocol.load("door")(engine, auth, own)
                self.doors[protocol.name] = (protocol, door)
                routers[protocol.prefix] = IndexedRouter(door.routes)
                routes += door.root_routes
                routes.append(Mount(protocol.prefix, app=routers[protocol.prefix]))
                if door.callback_body is not None:
                    engine.callbacks.formats[protocol.name] = door.callback_body
                if door.refuses is not None:
                    engine.agents.add_check(door.refuses)
        _check_once(routes)
        roots = {p.prefix for p, d in self.doors.values() if any(getattr(r, "path", None) == "/" for r in d.routes)}
        app = Starlette(routes=routes, exception_handlers={HTTPException: _no_route})
        fixed = {
            (method, prefix + path): (prefix, route.endpoint)
            for prefix, router in routers.items()
            for (method, path), route in router.fixed.items()
            if inspect.iscoroutinefunction(route.endpoint)
        }
        affinities = {p.prefix: d.affinity for p, d in self.doors.values() if d.affinity is not None}
        self._passing = [Passing(_Fixed(app, fixed), engine.cluster.membership, auth, affinities)]
        self.asgi: ASGIApp = _Checked(self._passing[0], hosts, roots)

    async def _export(self, run: str) -> AsyncIterator[bytes]:
        """Yields the signed audit trail of a task."""
        if self._audit_key is None:
            raise Unavailable("this server has no key that signs exports")
        key = await asyncio.to_thread(SigningKey.load_or_create, self._audit_key)
        async for line in audit.export(self.engine, run, key, now=now()):
            yield line

    def alone(self, name: str, hosts: HostPolicy) -> ASGIApp:
        """Returns the app of a single door, with its paths at the root."""
        protocol, door = self.doors[name]
        app = Starlette(routes=door.routes, exception_handlers={HTTPException: _no_route})
        fixed = {
            place: ("", route.endpoint)
            for place, route in IndexedRouter(door.routes).fixed.items()
            if inspect.iscoroutinefunction(route.endpoint)
        }
        affinities = {protocol.prefix: door.affinity} if door.affinity is not None else {}
        passing = Passing(_Fixed(app, fixed), self.engine.cluster.membership, self._auth, affinities, protocol.prefix)
        self._passing.append(passing)
        return _Checked(passing, hosts, set())

    async def start(self, address: str | None, serve: Callable[..., Awaitable[str]] | None) -> list[str]:
        """Begins the doors' own work, once the engine is up. Returns notes for the owner. `address`: of the server;
        `serve`: opens a port for a door, see `Opening`."""
        notes: list[str] = []
        for protocol, door in self.doors.values():
            if door.lifespan is not None:
                opening = Opening(None if address is None else address + protocol.prefix, serve)
                notes += await self._working.enter_async_context(door.lifespan(opening))
        return notes

    async def stop(self) -> None:
        """Ends the work of the doors. No requests come any more, and the engine is about to stop."""
        await close_all([self._working.aclose, *(passing.close for passing in self._passing)])

    async def close(self) -> None:
        """The server stops: doors end what would stay open for ever."""
        self.probes.ready = False
        for _, door in self.doors.values():
            if door.close_streams is not None:
                await door.close_streams()

    async def _healthz(self, request: Request) -> Response:
        return await self.probes.healthz()

    async def _readyz(self, request: Request) -> Response:
        caller = await self._caller(request)
        return caller if isinstance(caller, Response) else await self.probes.readyz()

    async def _metrics(self, request: Request) -> Response:
        caller = await self._caller(request)
        return caller if isinstance(caller, Response) else await self.probes.metrics(caller)

    async def _mounts(self, request: Request) -> Response:
        caller = await self._caller(request)
        if isinstance(caller, Response):
            return caller
        return json_response({"mounts": msgspec.to_builtins(self.probes.mounts())})

    async def _caller(self, request: Request) -> Caller | Response:
        """The caller, or the answer to who may not ask. Not for loopback either: behind a proxy, everybody comes from
        there."""
        try:
            return await self._auth.authenticate(request.headers)
        except InterlinguaError as error:
            challenge = getattr(error, "challenge", None)
            return json_response(
                error.message, 503 if error.transient else 401, {"www-authenticate": challenge} if challenge else {}
            )


def _check_once(routes: list[BaseRoute]) -> None:
    """Raises DefinitionError if two doors claim the same path at the root."""
    paths = [route.path for route in routes if isinstance(route, Route | Mount)]
    for path in paths:
        if paths.count(path) > 1:
            raise DefinitionError(f"two doors claim the path {path}")


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = f"{request.method} {request.url.path}: {error.detail}"
    return json_response(said, error.status_code, dict(error.headers or {}))


class _Fixed:
    """Calls an endpoint at a fixed path directly; all other requests take the way through the layers of starlette."""

    def __init__(self, app: ASGIApp, fixed: dict[tuple[str, str], tuple[str, Endpoint]]) -> None:
        self._app = app
        self._fixed = fixed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._fixed.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        prefix, endpoint = found
        scope["root_path"] = scope.get("root_path", "") + prefix
        scope["path_params"] = {}
        try:
            response = await endpoint(Request(scope, receive))
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            response = json_response("Internal Server Error", 500)
        await response(scope, receive, send)


class _Checked:
    """Wraps the whole app: checks Host and Origin before any door, and logs each request as one line."""

    def __init__(self, app: ASGIApp, hosts: HostPolicy, roots: set[str]) -> None:
        self._app = app
        self._hosts = hosts
        self._roots = roots  # prefixes of doors that answer at the prefix itself; a redirect would lose POSTs
        self._welcome: set[tuple[tuple[bytes, bytes], ...]] = set()  # headers that were checked and are fine

    def _check(self, scope: Scope) -> None:
        told = _told(scope["headers"])
        if told not in self._welcome:
            self._hosts.check(Headers(scope=scope))
            if sum(len(value) for _, value in told) > _WORTH_KEEPING:
                return
            if len(self._welcome) >= 1000:
                self._welcome.clear()
            self._welcome.add(told)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        if scope["path"] in self._roots:
            scope = {**scope, "path": scope["path"] + "/"}
        try:
            self._check(scope)
        except InterlinguaError as error:
            refusal = json_response(error.message, 403)
            if scope["type"] == "websocket":
                await WebSocket(scope, receive, send).send_denial_response(refusal)
            else:
                await refusal(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await self._app(scope, receive, send)
            return
        if self._hosts.allowed_origins:
            page = cors.page_of(scope, self._hosts)
            if page is not None and (allowed := cors.preflight(scope, page)) is not None:
                await allowed(scope, receive, send)
                return
            send = cors.telling(page, send)
        if not access.isEnabledFor(logging.INFO):
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0
        asker.set(None)

        async def noted(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            self._note(scope, status, (time.perf_counter() - began) * 1000)

    def _note(self, scope: Scope, status: int, took: float) -> None:
        run = scope.get("path_params", {}).get("run_id")
        _note(scope["method"], scope["path"], status, took, asker.get(), run)


def _note(
    method: str, path: str, status: int, took: float, caller: str | None, run: str | None = None
) -> None:  # fmt: skip
    fields = {
        "caller": caller, "run": run, "method": method, "path": path, "status": status or None, "ms": round(took, 1),
    }  # fmt: skip
    level = logging.DEBUG if path in _PROBES else logging.INFO  # they are asked every few seconds, for ever
    # People read what became of runs. One client that looks around makes dozens of requests, most of them to paths that
    # no door has.
    quiet = status < 400 or (status == 404 and caller is None)
    extra = {"fields": fields, FOR_MACHINES: quiet}
    access.log(level, "%s %s %s", method, path, status or "was left", extra=extra)


def _told(headers: list[tuple[bytes, bytes]]) -> tuple[tuple[bytes, bytes], ...]:
    return tuple([header for header in headers if header[0] in (b"host", b"origin")])


class NotingAuthenticator(Authenticator):
    """Tells the log who asks. Here, and not in the doors: it is the one check that they all have."""

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        caller = await super().authenticate(headers)
        asker.set(caller.id)
        return caller


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
        self._guard = guard
        self._secret = secret

    def check(self, url: str) -> None:
        """Raises an error for a URL to which nothing is ever sent."""
        self._guard.check_text(url)

    async def send(self, url: str, body: Any, delivery: int) -> None:
        content = json.dumps(body, allow_nan=False).encode()
        headers = {"content-type": "application/json", "x-interlingua-delivery": str(delivery)}
        if self._secret is not None:
            headers |= webhook_signatures.headers(self._secret, str(delivery), int(time.time()), content)
        try:
            # Only the status of the answer counts: the rest comes from a stranger, of any length and encoding.
            async with self._client.stream("POST", url, content=content, headers=headers) as answer:
                status = answer.status_code
        except httpx2.HTTPError as error:
            raise Unavailable(f"{type(error).__name__}: {error}") from error
        if not 200 <= status < 300:
            raise NotTaken(f"the receiver answered {status}")

    async def close(self) -> None:
        await self._client.aclose()
