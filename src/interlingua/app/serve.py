"""Serving: the engine, the HTTP app and uvicorn, from start to graceful end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from ..engine.agents import Agent
from ..engine.engine import Engine
from ..engine.settings import Settings
from ..security.addresses import is_loopback
from ..security.auth import Authenticator, check_bind
from ..security.egress import EgressGuard
from ..security.origins import HostPolicy
from ..security.tokens import Issuer, TokenVerifier
from .http import HttpApp, Webhooks, fetch
from .keys import StoredKeys


class ServeSettings(msgspec.Struct, kw_only=True, frozen=True):
    host: str = "127.0.0.1"
    port: int = 8000
    allowed_hosts: list[str] = []
    allowed_origins: list[str] = []
    issuers: list[Issuer] = []
    callback_secret: str | None = None
    allow_private_callbacks: bool = False
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
    open_to_all = not await keys.all() and not settings.issuers
    tokens = TokenVerifier(settings.issuers, fetch) if settings.issuers else None
    auth = Authenticator(keys, tokens, open_to_all=open_to_all)
    await engine.store.close()
    check_bind(settings.host, auth)
    loopback = is_loopback(settings.host)
    webhooks = Webhooks(
        EgressGuard(allow_loopback=loopback, allow_private=settings.allow_private_callbacks), settings.callback_secret
    )
    engine.callbacks.send = webhooks.send
    app = HttpApp(engine, auth, HostPolicy.for_bind(settings.host, settings.allowed_hosts, settings.allowed_origins))
    await engine.start()
    config = uvicorn.Config(
        app.asgi, host=settings.host, port=settings.port, http="httptools", loop="asyncio", lifespan="off",
        log_config=None, access_log=False, server_header=False, timeout_keep_alive=75,
    )  # fmt: skip
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    sockets = [config.bind_socket()]
    host, port = sockets[0].getsockname()[:2]
    running = asyncio.get_running_loop().create_task(server._serve(sockets))
    try:
        while not server.started:
            if running.done():
                await running
            await asyncio.sleep(0.001)
        shown = f"[{host}]" if ":" in host else host
        yield Server(engine, app, f"http://{shown}:{port}")
    finally:
        app.ready = False
        server.should_exit = True
        await asyncio.gather(running, return_exceptions=True)
        for sock in sockets:
            sock.close()
        await engine.stop()
        await webhooks.close()
