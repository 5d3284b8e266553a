"""Runs a server: the engine, the HTTP app and uvicorn, from start to graceful end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..bus.port import BusSettings
from ..doors.settings import DoorSettings
from ..engine.agents.agent import Agent
from ..engine.engine import Engine
from ..engine.settings import Settings
from ..runtime.closing import close_all
from ..security.addresses import is_loopback
from ..security.auth import Authenticator, check_bind
from ..security.egress import EgressGuard
from ..security.issuers import Issuer
from ..security.origins import HostPolicy
from .auth.issuers import fetch
from .auth.stored_keys import StoredKeys, close_when_keyed
from .checked_app import LoggingAuthenticator, access
from .config.settings import CallbackSettings, Mounting, ServerSettings, sections
from .health import probed
from .http_app import HttpApp
from .http_server import CannotListen, HttpServer, OwnPorts, listen
from .mounts.entry import MountEntry, views
from .mounts.supervisor import Mounts
from .paths import audit_key
from .stores import shown
from .webhooks import Webhooks
from .wire_trace import TracedApp, WireTrace
from .worker_process import Workplace

if TYPE_CHECKING:
    from ..security.tokens import TokenVerifier

__all__ = ["CannotListen", "ServeSettings", "Server", "Services", "serving"]

log = logging.getLogger("interlingua.http")

EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 - a name for it, nothing listens there


class ServeSettings(ServerSettings, kw_only=True, frozen=True):
    """Everything that a server is started with. Those settings that are no keys of `[server]` come after them."""

    issuers: tuple[Issuer, ...] = ()
    callbacks: CallbackSettings = CallbackSettings()
    doors: dict[str, DoorSettings] = msgspec.field(default_factory=dict)
    """By the name of the protocol; other doors have their defaults."""
    listeners: bool = False
    """Allows doors to open ports of their own, beside the one that they share."""
    mounting: Mounting = Mounting()
    bus: BusSettings = BusSettings()
    engine: Settings = Settings()


class Services:
    """Everything of a server but its socket: the engine, the app with its doors, the mounts and the webhooks.

    `authenticator` decides who calls; without one, the keys of the store and the issuers do.
    """

    def __init__(
        self, store: Path | str, agents: Iterable[Agent[..., Any]], settings: ServeSettings,
        mounts: Iterable[MountEntry] = (), *, project: str = "", root: Path | None = None,
        authenticator: Authenticator | None = None,
    ) -> None:  # fmt: skip
        self.settings = settings
        self.engine = Engine(
            store, agents=agents, bus=settings.bus, settings=settings.engine, project=project, root=root
        )
        self.mounts = Mounts(self.engine, settings.mounting)
        self.notes: list[str] = []  # of doors, for the owner: addresses of their own, ports that gave way
        self._store = store
        self._entries = list(mounts)
        self._authenticator = authenticator
        self._closing: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        """Looks who may call, and makes the app. Nothing runs yet."""
        settings, engine = self.settings, self.engine
        self.auth = self._authenticator or await self._keys()
        # Another name for this server means a proxy, and callers from elsewhere: what listens here is not theirs to
        # call.
        local = is_loopback(settings.host) and not settings.allowed_hosts
        self.webhooks = Webhooks(
            EgressGuard(allow_loopback=local, allow_private=settings.callbacks.allow_private), settings.callbacks.secret
        )
        engine.callbacks.send, engine.callbacks.judge = self.webhooks.send, self.webhooks.check
        engine.callbacks.keep_trying = settings.callbacks.hours * 3600
        engine.reminders.serves = True
        hosts = HostPolicy.for_bind(settings.host, settings.allowed_hosts, settings.allowed_origins)
        self.app = HttpApp(engine, self.auth, hosts, settings.doors, audit_key(self._store))
        self.app.probes.mounts = lambda: [*self.mounts.views(), *views(engine.cluster.remote_agents)]

    async def _keys(self) -> Authenticator:
        settings = self.settings
        async with self.engine.only_store_open():
            keys = StoredKeys(self.engine.keys)
            open_to_all = not await keys.any() and not settings.issuers
        tokens = _verifier(settings.issuers) if settings.issuers else None
        kind = LoggingAuthenticator if access.isEnabledFor(logging.INFO) else Authenticator  # costs nothing when unread
        auth = kind(keys.remembered(), tokens, open_to_all=open_to_all)
        own_hosts = (door.own_host or settings.host for door in settings.doors.values() if door.own_port is not None)
        for host in {settings.host, *own_hosts}:
            check_bind(host, auth)
        self._stored_keys = keys
        return auth

    async def start(self, address: str | None, serve: Callable[..., Awaitable[str]] | None = None) -> None:
        """Begins the work of doors and mounts. The engine has been started. `address`: of the server; None: it is part
        of another app. `serve`: opens a port for a door."""
        if self._authenticator is None:
            watching = close_when_keyed(self.engine, self._stored_keys, self.auth)
            self._closing = asyncio.get_running_loop().create_task(watching)
        self.notes += await self.app.start(address, serve)
        await self.mounts.change(self._entries)
        await self.engine.cluster.remote_agents.start(looks=self.settings.elsewhere)

    async def stop_taking(self) -> None:
        """Ends what would go on for ever. Requests may still be answered."""
        if self._closing is not None:
            self._closing.cancel()
        engine = self.engine
        # The membership first: nothing more is passed on to a server that stops.
        await close_all(
            [
                engine.cluster.membership.leave, engine.cluster.remote_agents.stop, self.mounts.close,
                self.app.close_streams,
            ]
        )  # fmt: skip

    async def stop(self) -> None:
        """Ends everything. No request comes any more."""
        closing = [self._closing] if self._closing is not None else []
        await close_all(
            [
                lambda: asyncio.gather(*closing, return_exceptions=True), self.app.stop, self.engine.stop,
                self.webhooks.close,
            ]
        )  # fmt: skip


class Server(Workplace):
    """A server that is up. `address` is where."""

    def __init__(self, services: Services, address: str, store: str) -> None:
        super().__init__(services.engine, services.mounts, store)
        self.app = services.app
        self.address = address
        self.notes = services.notes


def _verifier(issuers: Sequence[Issuer]) -> TokenVerifier:
    from ..security.tokens import TokenVerifier

    return TokenVerifier(issuers, fetch)


@contextlib.asynccontextmanager
async def serving(
    store: Path | str,
    agents: Iterable[Agent[..., Any]],
    settings: ServeSettings | None = None,
    mounts: Iterable[MountEntry] = (),
    *,
    project: str = "",
    root: Path | None = None,
) -> AsyncIterator[Server]:
    """Serves agents on every door until the context ends; then running agents are finished or handed back."""
    settings = settings or ServeSettings()
    services = Services(store, agents, settings, mounts, project=project, root=root)
    await services.prepare()
    engine, app = services.engine, services.app
    listening = listen(settings.host, settings.port)
    wire = WireTrace(settings.trace, "http") if settings.trace is not None else None
    server = HttpServer(
        app.asgi if wire is None else TracedApp(app.asgi, wire), listening, grace=settings.shutdown_grace,
        max_message_bytes=settings.max_message_bytes,
    )  # fmt: skip
    try:
        await engine.start()
    except BaseException:
        listening.close()
        raise
    own = OwnPorts()
    try:
        # Before the first request: a door whose work has not begun could not answer it.
        await services.start(server.address, own.serve if settings.listeners else None)
        services.notes += await _own_ports(settings, app, own, wire)
        await server.start()
        services.notes += await engine.cluster.membership.enter(_reached_at(settings, server.address))
        await engine.runs.blocked_report.announce()
        async with probed(settings.metrics, app.probes, services.auth) as metrics:
            if metrics is not None:
                services.notes.append(f"metrics are at {metrics}, too: names need a key there, numbers do not")
            yield Server(services, server.address, shown(store))
    finally:
        await close_all(
            [
                services.stop_taking, own.close, server.close, services.stop,
                *([wire.close] if wire is not None else []),
            ]
        )  # fmt: skip


def _reached_at(settings: ServeSettings, address: str) -> str:
    """Returns the address at which other replicas reach this one. A server that listens on every address is most likely
    reached by this machine's name."""
    if settings.advertise is not None:
        return settings.advertise
    host, _, port = address.rpartition(":")
    return f"http://{socket.gethostname()}:{port}" if settings.host in EVERYWHERE else f"{host}:{port}"


async def _own_ports(settings: ServeSettings, app: HttpApp, own: OwnPorts, wire: WireTrace | None) -> list[str]:
    """Serves doors at the root of a port of their own, beside their place on the shared port."""
    notes = []
    for name, (protocol, _) in app.doors.items():
        door = settings.doors.get(name)
        if door is None or door.own_port is None:
            continue
        host = door.own_host or settings.host
        alone = app.alone(name, HostPolicy.for_bind(host, settings.allowed_hosts, settings.allowed_origins))
        served = alone if wire is None else TracedApp(alone, wire)
        option = next(one.flags for one in sections()[f"doors.{name}"].settings if one.field == "own_port")
        address = await own.serve(served, host, [door.own_port], option=option)
        notes.append(f"{protocol.title} is at {address}, too")
    return notes
