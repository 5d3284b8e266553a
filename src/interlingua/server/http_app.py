"""Builds the HTTP app: every door under its prefix on one port, with health, readiness and metrics beside them."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ..control.api import ControlApi
from ..control.app import control_app
from ..control.wire import PREFIX as CONTROL_PREFIX
from ..doors.settings import DoorSettings
from ..engine.engine import Engine
from ..engine.ids import now
from ..model.errors import DefinitionError, InterlinguaError, Unavailable
from ..model.run import Caller
from ..protocols.base import Door, Opening, Protocol
from ..protocols.installed import protocols
from ..runtime.closing import close_all
from ..security.auth import Authenticator
from ..security.origins import HostPolicy
from ..security.signing_key import SigningKey
from ..transports.http.body import json_response
from ..transports.http.fixed_routes import IndexedRouter
from . import audit
from .checked_app import CheckedApp
from .health import Probes
from .replicas.forward import Passing

log = logging.getLogger("interlingua.http")

Endpoint = Callable[[Request], Awaitable[Response]]


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
        self._passing = [Passing(_DirectEndpoints(app, fixed), engine.cluster.membership, auth, affinities)]
        self.asgi: ASGIApp = CheckedApp(self._passing[0], hosts, roots)

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
        routes = [*door.root_routes, *door.routes]
        app = Starlette(routes=routes, exception_handlers={HTTPException: _no_route})
        fixed = {
            place: ("", route.endpoint)
            for place, route in IndexedRouter(door.routes).fixed.items()
            if inspect.iscoroutinefunction(route.endpoint)
        }
        affinities = {protocol.prefix: door.affinity} if door.affinity is not None else {}
        passing = Passing(
            _DirectEndpoints(app, fixed), self.engine.cluster.membership, self._auth, affinities, protocol.prefix
        )
        self._passing.append(passing)
        return CheckedApp(passing, hosts, set())

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

    async def close_streams(self) -> None:
        """Ends the answers that would stay open for ever, because the server stops."""
        self.probes.ready = False
        await close_all([door.close_streams for _, door in self.doors.values() if door.close_streams is not None])

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
        """Returns the caller, or the answer for one that may not ask. Callers from loopback need credentials too:
        behind a proxy, everybody comes from there."""
        try:
            return await self._auth.authenticate(request.headers)
        except InterlinguaError as error:
            challenge = getattr(error, "challenge", None)
            return json_response(
                error.message, 503 if error.transient else 401, {"www-authenticate": challenge} if challenge else {}
            )


def _check_once(routes: list[BaseRoute]) -> None:
    """Raises DefinitionError if a path at the root is claimed twice."""
    paths = [route.path for route in routes if isinstance(route, Route | Mount)]
    for path in paths:
        if paths.count(path) > 1:
            raise DefinitionError(f"the path {path} is claimed twice: by two doors, or by a door and the server")


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return json_response(message, error.status_code, dict(error.headers or {}))


class _DirectEndpoints:
    """Calls an endpoint at a fixed path directly. All other requests pass through the layers of starlette."""

    def __init__(self, app: ASGIApp, fixed: dict[tuple[str, str], tuple[str, Endpoint]]) -> None:
        self._app = app
        self._fixed = fixed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        direct = self._fixed.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if direct is None:
            await self._app(scope, receive, send)
            return
        prefix, endpoint = direct
        scope["root_path"] = scope.get("root_path", "") + prefix
        scope["path_params"] = {}
        try:
            response = await endpoint(Request(scope, receive))
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            response = json_response("Internal Server Error", 500)
        await response(scope, receive, send)
