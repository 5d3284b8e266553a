"""Runs a server: the engine, the HTTP app and uvicorn, from start to graceful end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
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

__all__ = ["CannotListen", "ServeSettings", "Server", "serving"]

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


class Server(Workplace):
    """A server that is up. `address` is where."""

    def __init__(
        self, engine: Engine, app: HttpApp, address: str, notes: Iterable[str] = (), mounts: Mounts | None = None,
        store: str = "",
    ) -> None:  # fmt: skip
        super().__init__(engine, mounts, store)
        self.app = app
        self.address = address
        self.notes = list(notes)  # notes of doors for the owner: addresses of their own, ports that gave way


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
    engine = Engine(store, agents=agents, bus=settings.bus, settings=settings.engine, project=project, root=root)
    async with engine.only_store_open():
        keys = StoredKeys(engine.keys)
        open_to_all = not await keys.any() and not settings.issuers
    tokens = _verifier(settings.issuers) if settings.issuers else None
    kind = LoggingAuthenticator if access.isEnabledFor(logging.INFO) else Authenticator  # costs nothing when unread
    auth = kind(keys.remembered(), tokens, open_to_all=open_to_all)
    own_hosts = (door.own_host or settings.host for door in settings.doors.values() if door.own_port is not None)
    for host in {settings.host, *own_hosts}:
        check_bind(host, auth)
    # Another name for this server means a proxy, and callers from elsewhere: what listens here is not theirs to call.
    local = is_loopback(settings.host) and not settings.allowed_hosts
    webhooks = Webhooks(
        EgressGuard(allow_loopback=local, allow_private=settings.callbacks.allow_private), settings.callbacks.secret
    )
    engine.callbacks.send, engine.callbacks.judge = webhooks.send, webhooks.check
    engine.callbacks.keep_trying = settings.callbacks.hours * 3600
    engine.reminders.serves = True
    hosts = HostPolicy.for_bind(settings.host, settings.allowed_hosts, settings.allowed_origins)
    app = HttpApp(engine, auth, hosts, settings.doors, audit_key(store))
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
    kept = Mounts(engine, settings.mounting)
    app.probes.mounts = lambda: [*kept.views(), *views(engine.cluster.remote_agents)]
    closing = asyncio.get_running_loop().create_task(close_when_keyed(engine, keys, auth))
    try:
        # Before the first request: a door whose work has not begun could not answer it.
        notes = await app.start(server.address, own.serve if settings.listeners else None)
        await kept.change(mounts)
        await engine.cluster.remote_agents.start(looks=settings.elsewhere)
        notes += await _own_ports(settings, app, own, wire)
        await server.start()
        notes += await engine.cluster.membership.enter(_reached_at(settings, server.address))
        await engine.runs.blocked_report.announce()
        async with probed(settings.metrics, app.probes, auth) as metrics:
            if metrics is not None:
                notes.append(f"metrics are at {metrics}, too: names need a key there, numbers do not")
            yield Server(engine, app, server.address, notes, kept, shown(store))
    finally:
        closing.cancel()
        await close_all(
            [
                engine.cluster.membership.leave,  # first: nothing more is passed on to a server that stops
                engine.cluster.remote_agents.stop, kept.close, app.close_streams, own.close, server.close,
                lambda: asyncio.gather(closing, return_exceptions=True),
                app.stop, engine.stop, webhooks.close, *([wire.close] if wire is not None else []),
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
