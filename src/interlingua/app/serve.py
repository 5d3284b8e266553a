"""Serving: the engine, the HTTP app and uvicorn, from start to graceful end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from ..engine.agents import Agent
from ..engine.engine import Engine
from ..engine.settings import Settings
from ..model.errors import InvalidRequest, StoreError
from ..security.addresses import is_loopback
from ..security.auth import Authenticator, check_bind
from ..security.egress import EgressGuard
from ..security.origins import HostPolicy
from ..security.tokens import Issuer, TokenVerifier
from .http import HttpApp, NotingAuthenticator, Webhooks, access, fetch
from .keys import StoredKeys
from .trace import TracedApp, WireTrace

log = logging.getLogger("interlingua.http")


class CannotListen(InvalidRequest):
    """The address is taken, or not ours."""

    code = "cannot_listen"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ServeSettings(msgspec.Struct, kw_only=True, frozen=True):
    host: str = "127.0.0.1"
    port: int = 8000
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
    """Of one message of a WebSocket; a longer one ends the connection."""
    engine: Settings = Settings()


class Server:
    """A server that is up. `address` is where."""

    def __init__(self, engine: Engine, app: HttpApp, address: str) -> None:
        self.engine = engine
        self.app = app
        self.address = address


@contextlib.asynccontextmanager
async def serving(
    store: Path | str, agents: Iterable[Agent[..., Any]], settings: ServeSettings | None = None
) -> AsyncIterator[Server]:
    """Serve agents on every door until the context ends; running agents are finished or handed back then."""
    settings = settings or ServeSettings()
    engine = Engine(store, agents=agents, settings=settings.engine)
    await engine.store.open()
    keys = StoredKeys(engine.store)
    open_to_all = not await keys.any() and not settings.issuers
    tokens = TokenVerifier(settings.issuers, fetch) if settings.issuers else None
    kind = NotingAuthenticator if access.isEnabledFor(logging.INFO) else Authenticator  # costs nothing when unread
    auth = kind(keys, tokens, open_to_all=open_to_all)
    await engine.store.close()
    check_bind(settings.host, auth)
    # Another name for this server means a proxy, and callers from elsewhere: what listens here is not theirs to call.
    local = is_loopback(settings.host) and not settings.allowed_hosts
    webhooks = Webhooks(
        EgressGuard(allow_loopback=local, allow_private=settings.allow_private_callbacks), settings.callback_secret
    )
    engine.callbacks.send = webhooks.send
    engine.callbacks.keep_trying = settings.callback_retry
    app = HttpApp(engine, auth, HostPolicy.for_bind(settings.host, settings.allowed_hosts, settings.allowed_origins))
    listening = _listen(settings.host, settings.port)
    try:
        await engine.start()
    except BaseException:
        listening.close()
        raise
    wire = WireTrace(settings.trace, "http") if settings.trace is not None else None
    config = uvicorn.Config(
        app.asgi if wire is None else TracedApp(app.asgi, wire), http="httptools", loop="asyncio", lifespan="off",
        log_config=None, access_log=False, server_header=False, proxy_headers=False, timeout_keep_alive=75,
        timeout_graceful_shutdown=settings.shutdown_grace,
        # The implementation that is named is the one without deprecated parts. A peer that reads slowly answers pings
        # late; compressing every token costs more than it saves.
        ws="websockets-sansio", ws_max_size=settings.max_message_bytes, ws_ping_timeout=60.0,
        ws_per_message_deflate=False,
    )  # fmt: skip
    logging.getLogger("uvicorn.error").addFilter(_worth_a_line)
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    host, port = listening.getsockname()[:2]
    loop = asyncio.get_running_loop()
    running = loop.create_task(server._serve([listening]))
    closing = loop.create_task(_close_when_keyed(engine, keys, auth))
    try:
        while not server.started:
            if running.done():
                await running
            await asyncio.sleep(0.001)
        shown = f"[{host}]" if ":" in host else host
        yield Server(engine, app, f"http://{shown}:{port}")
    finally:
        closing.cancel()
        await app.close()
        server.should_exit = True
        await asyncio.gather(running, closing, return_exceptions=True)
        listening.close()
        await engine.stop()
        await webhooks.close()
        if wire is not None:
            wire.close()


async def _close_when_keyed(engine: Engine, keys: StoredKeys, auth: Authenticator) -> None:
    """A server that lets everyone in stops doing so with the first key of its store."""
    if not auth.open_to_all:
        return
    news = asyncio.Event()
    told = engine.store.on_foreign_change

    def changed() -> None:
        told()
        news.set()

    engine.store.on_foreign_change = changed  # keys are made by other processes
    while auth.open_to_all:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await news.wait()
        news.clear()
        with contextlib.suppress(StoreError):
            auth.open_to_all = not await keys.any()
        await asyncio.sleep(0.02)  # others may write all the time
    engine.store.on_foreign_change = told
    log.warning("the store has its first key: callers need one from now on")


def _worth_a_line(record: logging.LogRecord) -> bool:
    """Not that a stream was cut off because the server stops: that is said once, without a traceback for each. And not
    what uvicorn says of every WebSocket that was refused."""
    if record.msg == "ASGI callable returned without completing handshake.":
        return False
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


def _listen(host: str, port: int) -> socket.socket:
    """A socket on the address, before anything else has begun."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # asyncio turns Nagle's algorithm off only where a socket names its protocol, and this one does not: an answer
        # whose head and body are two writes would wait 40 ms for the client's delayed acknowledgement. Connections
        # inherit this.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise CannotListen(f"port {port} of {host} is taken", hint="choose another one with --port") from None
        raise CannotListen(f"cannot listen on port {port} of {host}: {error.strerror or error}") from error
    return listening
