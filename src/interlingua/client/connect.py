"""Opens what a client names: a server, a store, an engine, an ASGI app, or anything that can be mounted.

Everything but a server of ours is served in this process, by the same control API: an engine stands behind it, and no
port is opened. So a client calls one thing, whatever it was given.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec

from ..control import wire
from ..engine.engine import Engine
from ..engine.settings import Settings
from ..model.errors import InvalidRequest, Unavailable
from ..security.auth import API_KEY_HEADER
from .asgi_transport import AsgiTransport

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from ..engine.agents.agent import Agent
    from ..security.auth import Authenticator

ADDRESS, KEY = "INTERLINGUA_URL", "INTERLINGUA_KEY"
"""Variables with the address of a server and the key for it, where a program names none."""

_LOCAL = "http://localhost"
_MEMORY = ":memory:"
_CANCEL_GRACE = 1.0  # seconds that agents have to end when the client leaves
_STORES = (".db", ".sqlite", ".sqlite3")


class Connection(msgspec.Struct):
    """The server that a client calls. `mounted`: the kind of target, where it is served from memory here."""

    http: httpx2.AsyncClient
    mounted: str = ""


@contextlib.asynccontextmanager
async def connect(
    target: Any, *, key: str | None, prefix: str, timeout: float, http: httpx2.AsyncClient | None
) -> AsyncIterator[Connection]:
    """Opens a target until the context ends."""
    if target is None:
        target = os.environ.get(ADDRESS)
        if target is None:
            raise InvalidRequest(f"name a server or another target, or set {ADDRESS}")
    async with contextlib.AsyncExitStack() as stack:
        if isinstance(target, Engine):
            if not target.running:
                await stack.enter_async_context(target)
            yield Connection(await stack.enter_async_context(_local(target, timeout)))
        elif isinstance(target, str | Path):
            yield await _named(stack, str(target), key, prefix, timeout, http)
        elif callable(target):
            app: Any = getattr(target, "asgi", target)
            transport = AsgiTransport(app)
            yield Connection(await stack.enter_async_context(_client(_LOCAL + prefix, key, timeout, transport)))
        else:
            raise InvalidRequest(f"{target!r} is no address, store, engine, server or ASGI app")


async def _named(
    stack: contextlib.AsyncExitStack, target: str, key: str | None, prefix: str, timeout: float,
    http: httpx2.AsyncClient | None,
) -> Connection:  # fmt: skip
    if _is_store(target):
        engine = await stack.enter_async_context(Engine(target))
        return Connection(await stack.enter_async_context(_local(engine, timeout)))
    if target.startswith(("http://", "https://")):
        url = target.partition("#")[0].rstrip("/") + prefix
        key = key or os.environ.get(KEY)
        if http is None:
            http = await stack.enter_async_context(_client(url, key, timeout))
        if await _speaks_control(http):
            return Connection(http)
    from ..server.mounts.entry import let_go

    agents = await _agents(target, key)
    stack.push_async_callback(let_go, {agent.card.key: agent for agent in agents})  # their connections, at the end
    # Its runs end with it in any case: nobody could go on with them.
    settings = Settings(shutdown_grace=0, cancel_grace=_CANCEL_GRACE)
    engine = await stack.enter_async_context(Engine(_MEMORY, agents=agents, settings=settings))
    return Connection(await stack.enter_async_context(_local(engine, timeout)), target.partition(":")[0])


def _is_store(target: str) -> bool:
    return target == _MEMORY or target.startswith(("postgresql://", "postgres://")) or target.endswith(_STORES)


async def _agents(target: str, key: str | None) -> list[Agent[..., Any]]:
    """Returns the agents of a target: of a file, of a team, or of a server that is mounted."""
    from ..protocols.targets import parse
    from ..server.loading.target import load_to_serve

    parsed = parse(target)
    if key is not None:
        parsed = msgspec.structs.replace(parsed, access=msgspec.structs.replace(parsed.access, key=key))
    return await load_to_serve(parsed)


async def _speaks_control(http: httpx2.AsyncClient) -> bool:
    """Returns whether a server has the control API. Raises Unavailable where nobody answers."""
    try:
        answer = await http.get(f"{wire.PREFIX}/me")
    except httpx2.TransportError as error:
        raise Unavailable(f"{http.base_url} does not answer: {str(error) or type(error).__name__}") from error
    type_: type[Any] = wire.Caller if answer.status_code == 200 else wire.Failure
    with contextlib.suppress(msgspec.MsgspecError):
        msgspec.json.decode(answer.content, type=type_)
        return True
    return False


@contextlib.asynccontextmanager
async def _local(engine: Engine, timeout: float) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of an engine in this process, which acts as the owner."""
    from ..security.auth import Authenticator

    app = local_app(engine, Authenticator(open_to_all=True))
    async with _client(_LOCAL, None, timeout, AsgiTransport(app)) as http:
        yield http


def local_app(engine: Engine, auth: Authenticator) -> ASGIApp:
    """Returns the control API of an engine in this process."""
    from starlette.applications import Starlette
    from starlette.routing import Mount

    from ..control.api import ControlApi
    from ..control.app import control_app

    api = ControlApi(engine, auth, mounts=list, export=_no_export)
    return Starlette(routes=[Mount(wire.PREFIX, app=control_app(api))])


async def _no_export(run: str) -> AsyncIterator[bytes]:
    raise Unavailable("only a server exports audit trails; use `interlingua audit export`")
    yield b""


@contextlib.asynccontextmanager
async def _client(
    url: str, key: str | None, timeout: float, transport: httpx2.AsyncBaseTransport | None = None
) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {API_KEY_HEADER: key} if key else {}
    limits = httpx2.Timeout(timeout, read=timeout + 30.0)
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=limits, transport=transport) as http:
        yield http
