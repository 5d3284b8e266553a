"""Serves health, readiness and metrics of a process, on a port of their own if the process has no doors.

That port asks for no key, so it is on loopback unless the owner names another address. Without a key, callers read
nothing but numbers there, unless the store has no keys at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ..engine.engine import Engine
from ..model.errors import InterlinguaError, InvalidRequest
from ..model.run import Caller
from ..security.auth import Authenticator
from ..security.errors import Unauthenticated
from ..security.origins import HostPolicy
from .http_server import HttpServer, listen
from .metrics import PATIENCE, render
from .mounts.entry import MountView

log = logging.getLogger("interlingua.http")

_LOOPBACK = "127.0.0.1"
_GRACE = 1  # seconds


class Probes:
    """Answers health probes. `ready` turns false when the process wants to end."""

    def __init__(self, engine: Engine) -> None:
        self.mounts: Callable[[], list[MountView]] = list
        self.ready = True
        self._engine = engine

    async def healthz(self) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(self) -> Response:
        if not self.ready:
            return PlainTextResponse("stopping\n", 503)
        if self._engine.metrics.store_trouble() is not None:  # the log has the path
            return PlainTextResponse("the store file is gone or was replaced\n", 503)
        try:
            async with asyncio.timeout(PATIENCE):
                await self._engine.callbacks.next_due()
                blocked = {reason: n for reason, n in (await self._engine.runs.blocked_report.counts()).items() if n}
        except Exception as error:
            log.error("the store does not answer: %s", str(error) or f"nothing within {PATIENCE:g} s")
            return PlainTextResponse("the store does not answer\n", 503)
        details = "".join(f"blocked: {count} {reason}\n" for reason, count in blocked.items())
        return PlainTextResponse(f"ready\n{details}")

    async def metrics(self, caller: Caller | None) -> Response:
        text = await render(self._engine, self.mounts(), caller)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


def place(text: str) -> tuple[str, int]:
    """Returns the host and port that `HOST:PORT`, or a port alone, names."""
    host, _, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or _LOOPBACK
    if not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise InvalidRequest(f"must be HOST:PORT, or a port of this machine, not {text!r}")
    return host, int(port)


@contextlib.asynccontextmanager
async def probed(where: str | None, probes: Probes, auth: Authenticator) -> AsyncIterator[str | None]:
    """Answers probes at an address until the context ends, and yields the address; does nothing if there is none.
    Numbers need no key there, but names are only for callers with a key, or for everybody if the store has no keys."""
    if where is None:
        yield None
        return
    host, port = place(where)
    hosts = HostPolicy.for_bind(host)

    async def metrics(request: Request) -> Response:
        try:
            caller = await auth.authenticate(request.headers)
        except Unauthenticated as error:
            if error.rejected:
                return PlainTextResponse(f"{error.message}\n", 401, {"www-authenticate": error.challenge})
            caller = None
        except InterlinguaError:  # the store is away, which metrics are to tell
            caller = None
        return await probes.metrics(caller)

    async def healthz(request: Request) -> Response:
        return await probes.healthz()

    async def readyz(request: Request) -> Response:
        return await probes.readyz()

    def route(path: str, answer: Callable[[Request], Awaitable[Response]]) -> Route:
        async def endpoint(request: Request) -> Response:
            try:
                hosts.check(request.headers)
            except InterlinguaError as error:
                return PlainTextResponse(f"{error.message}\n", 403)
            return await answer(request)

        return Route(path, endpoint)

    answers = {"/metrics": metrics, "/healthz": healthz, "/readyz": readyz}
    server = HttpServer(
        Starlette(routes=[route(path, answer) for path, answer in answers.items()]),
        listen(host, port, option="--metrics"), grace=_GRACE,
    )  # fmt: skip
    await server.start()
    try:
        yield f"{server.address}/metrics"
    finally:
        await server.close()
