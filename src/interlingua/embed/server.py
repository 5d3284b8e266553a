"""`Server`: agents and doors inside an ASGI app of somebody else. `interlingua serve` puts the same behind a socket."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from ..client.client import Client
from ..client.connect import local_app
from ..doors.settings import DoorSettings
from ..engine.agents.agent import Agent
from ..engine.engine import Engine
from ..model.errors import InvalidRequest
from ..model.run import OWNER, Caller
from ..protocols.installed import protocols
from ..protocols.targets import parse, spelled
from ..security.origins import HostPolicy
from ..server.app import ServeSettings, Services
from ..server.loading.target import load_to_serve
from ..server.mounts.entry import MountEntry
from ..transports.http.body import json_response
from .callers import FixedCaller, Login, LoginAuthenticator, RememberingConnection

__all__ = ["Server"]

_NOT_STARTED = (
    "the server of the agents has not been started: enter its lifespan, as in FastAPI(lifespan=server.lifespan)"
)


class Server:
    """Agents and their doors, to be put into an ASGI app. Nothing runs until its lifespan is entered.

        server = il.Server("agents.py", store="runs.db")
        app = FastAPI(lifespan=server.lifespan)
        app.mount("/agents", server.asgi)

    `targets`: files of agents, agents, teams and mounts. `store`: its path or address. `doors`: the protocols that have
    a door; all of them by default. `mounts`: targets whose agents are kept connected. `auth`: the outer app's login, a
    function from a request to an `il.Caller`, or None; without it, callers have API keys of the store, and everybody
    may call where there are none. `allowed_hosts`: names of the outer app, beside those of this machine. `settings`:
    for everything else.
    """

    def __init__(
        self, *targets: str | Path | Agent[..., Any], store: str | Path, doors: Sequence[str] | None = None,
        mounts: Iterable[str] = (), auth: Login | None = None, allowed_hosts: Sequence[str] = (),
        allowed_origins: Sequence[str] = (), project: str = "", settings: ServeSettings | None = None,
    ) -> None:  # fmt: skip
        known = {protocol.name for protocol in protocols() if protocol.door}
        if unknown := set(doors or ()) - known:
            raise InvalidRequest(f"there is no door {sorted(unknown)[0]!r} (there are: {', '.join(sorted(known))})")
        settings = settings or ServeSettings()
        open_ = known if doors is None else set(doors)
        own = {name: settings.doors.get(name) or _settings_of(name) for name in known}
        self._targets = targets
        self._store = store
        self._mounts = [(text, parse(text)) for text in mounts]
        self._login = auth
        self._project = project
        self._doors = open_
        self._settings = msgspec.structs.replace(
            settings, allowed_hosts=(*settings.allowed_hosts, *allowed_hosts),
            allowed_origins=(*settings.allowed_origins, *allowed_origins),
            doors={name: msgspec.structs.replace(door, enabled=name in open_) for name, door in own.items()},
        )  # fmt: skip
        self._services: Services | None = None
        self._alone: dict[str, ASGIApp] = {}

    # -- life ---------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Any = None) -> AsyncIterator[None]:
        """Runs the server for as long as the outer app runs: pass it to the app, or enter it in a lifespan of yours."""
        if self._services is not None:
            raise InvalidRequest("this server has been started already; a server has one lifespan at a time")
        agents = [agent for target in self._targets for agent in await _agents_of(target)]
        entries = [MountEntry(target=target, shown=spelled(text, target)) for text, target in self._mounts]
        services = Services(
            self._store, agents, self._settings, entries, project=self._project,
            authenticator=LoginAuthenticator(self._login) if self._login is not None else None,
        )  # fmt: skip
        await services.prepare()
        await services.engine.start()
        try:
            await services.start(None)
            self._services = services
            yield
        finally:
            self._services = None
            self._alone.clear()
            try:
                await services.stop_taking()
            finally:
                await services.stop()

    @property
    def engine(self) -> Engine:
        """The engine, while the lifespan lasts."""
        return self._started.engine

    @property
    def _started(self) -> Services:
        if self._services is None:
            raise InvalidRequest(_NOT_STARTED)
        return self._services

    # -- apps ---------------------------------------------------------------------------------------------

    @property
    def asgi(self) -> ASGIApp:
        """All doors under their prefixes, with the control API under /api/v1: mount it anywhere."""
        return self._app("")

    def door(self, name: str) -> ASGIApp:
        """Returns one door with its paths at the root: mount it anywhere."""
        if name not in self._doors:
            raise InvalidRequest(f"there is no door {name!r} here (there are: {', '.join(sorted(self._doors))})")
        return self._app(name)

    def _app(self, door: str) -> ASGIApp:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan":
                raise RuntimeError("a mounted app has no lifespan; enter server.lifespan in that of the outer app")
            if self._services is None:
                await _refuse(scope, receive, send)
                return
            await RememberingConnection(self._inner(door))(scope, receive, send)

        return app

    def _inner(self, door: str) -> ASGIApp:
        services = self._started
        if not door:
            return services.app.asgi
        if door not in self._alone:
            settings = self._settings
            hosts = HostPolicy.for_bind(settings.host, settings.allowed_hosts, settings.allowed_origins)
            self._alone[door] = services.app.alone(door, hosts)
        return self._alone[door]

    # -- clients ------------------------------------------------------------------------------------------

    async def client(self, request: HTTPConnection) -> AsyncIterator[Client]:
        """A client that acts as the caller of a request: `Depends(server.client)`. Raises where nobody is logged in."""
        services = self._started
        if self._login is not None:
            caller: Any = self._login(request)
            caller = await caller if hasattr(caller, "__await__") else caller
            if caller is None:
                caller = await services.auth.authenticate(request.headers)  # says what is missing
        else:
            caller = await services.auth.authenticate(request.headers)
        async with self._client_of(caller) as client:
            yield client

    def owner_client(self) -> Client:
        """Returns a client that acts as the owner of everything: for jobs of the app, never for requests of others."""
        return self._client_of(OWNER)

    def _client_of(self, caller: Caller) -> Client:
        return Client(local_app(self._started.engine, FixedCaller(caller)))


def _settings_of(door: str) -> DoorSettings:
    """Returns the default settings of a door."""
    protocol = next(protocol for protocol in protocols() if protocol.name == door)
    settings: DoorSettings = protocol.load("door_settings")() if protocol.door_settings else DoorSettings()
    return settings


async def _agents_of(target: str | Path | Agent[..., Any]) -> list[Agent[..., Any]]:
    return [target] if isinstance(target, Agent) else await load_to_serve(parse(str(target)))


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    refusal = json_response(_NOT_STARTED, 503, {"retry-after": "1"})
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(refusal)
    else:
        await refusal(scope, receive, send)
