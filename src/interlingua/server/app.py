"""Runs a server: the engine, the HTTP app and uvicorn, from start to graceful end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..bus.port import BusSettings
from ..engine.agents.agent import Agent
from ..engine.engine import Engine
from ..engine.settings import Settings
from ..runtime.closing import close_all
from ..security.addresses import is_loopback
from ..security.auth import Authenticator, check_bind
from ..security.egress import EgressGuard
from ..security.issuers import Issuer
from ..security.origins import HostPolicy
from .auth.stored_keys import StoredKeys, close_when_keyed
from .health import probed
from .http_app import HttpApp, NotingAuthenticator, Webhooks, access, fetch
from .http_server import CannotListen, HttpServer, OwnPorts, listen
from .mounts.entry import MountEntry, Mounting, views
from .mounts.supervisor import Mounts
from .paths import audit_key
from .stores import shown
from .wire_trace import TracedApp, WireTrace
from .worker_process import Workplace

if TYPE_CHECKING:
    from ..security.tokens import TokenVerifier

__all__ = ["CannotListen", "ServeSettings", "Server", "serving"]

log = logging.getLogger("interlingua.http")

EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 - a name for it, nothing listens there


class ServeSettings(msgspec.Struct, kw_only=True, frozen=True):
    host: str = "127.0.0.1"
    port: int = 8000
    advertise: str | None = None
    """The address (http://HOST:PORT) at which other processes on the same store reach this one; None: where it
    listens."""
    allowed_hosts: list[str] = []
    allowed_origins: list[str] = []
    issuers: list[Issuer] = []
    callback_secret: str | None = None
    allow_private_callbacks: bool = False
    callback_retry: float = 86_400.0
    """Seconds for which a callback that fails is tried again."""
    trace: Path | None = None
    """A file that every message of every door is written to, without secrets."""
    shutdown_grace: int = 3
    """Seconds that open connections have to end when the server stops; streams could stay for ever."""
    max_message_bytes: int = 32 * 1024 * 1024
    """Limit of one message of a WebSocket; a longer one ends the connection."""
    listeners: bool = False
    """Allows doors to open ports of their own, beside the one that they share."""
    options: dict[str, Any] = {}
    """Settings of single doors, by the name of their protocol."""
    without: list[str] = []
    """Protocols that have no door here."""
    own_ports: dict[str, tuple[str | None, int]] = {}
    """Doors with a port of their own, by the name of their protocol: the address (None: the server's) and the port."""
    elsewhere: bool = True
    """Offers also the agents that only other processes on the same store have."""
    metrics: str | None = None
    """[HOST:]PORT that shows metrics and health without a key, beside the doors."""
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


def _verifier(issuers: list[Issuer]) -> TokenVerifier:
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
    kind = NotingAuthenticator if access.isEnabledFor(logging.INFO) else Authenticator  # costs nothing when unread
    auth = kind(keys.remembered(), tokens, open_to_all=open_to_all)
    for host in {settings.host, *(own[0] or settings.host for own in settings.own_ports.values())}:
        check_bind(host, auth)
    # Another name for this server means a proxy, and callers from elsewhere: what listens here is not theirs to call.
    local = is_loopback(settings.host) and not settings.allowed_hosts
    webhooks = Webhooks(
        EgressGuard(allow_loopback=local, allow_private=settings.allow_private_callbacks), settings.callback_secret
    )
    engine.callbacks.send, engine.callbacks.judge = webhooks.send, webhooks.check
    engine.callbacks.keep_trying = settings.callback_retry
    engine.reminders.serves = True
    hosts = HostPolicy.for_bind(settings.host, settings.allowed_hosts, settings.allowed_origins)
    app = HttpApp(engine, auth, hosts, settings.options, settings.without, audit_key(store))
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
                engine.cluster.remote_agents.stop, kept.close, app.close, own.close, server.close,
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
    for name, (host, port) in settings.own_ports.items():
        host = host or settings.host
        alone = app.alone(name, HostPolicy.for_bind(host, settings.allowed_hosts, settings.allowed_origins))
        served = alone if wire is None else TracedApp(alone, wire)
        option = f"--{name}-{'door-port' if name == 'peer' else 'port'}"
        address = await own.serve(served, host, [port], option=option)
        notes.append(f"{app.doors[name][0].title} is at {address}, too")
    return notes
