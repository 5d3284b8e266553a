"""Serves an ASGI app on a socket, from start to graceful end: by uvicorn, or by hypercorn for HTTP/2.

Knows nothing of the app. Leaves signals to the program that starts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.types import ASGIApp

from .. import extras
from ..model.errors import InvalidRequest, StoreError
from ..transports.http.unread_body import UnreadBody

_BACKLOG = 2048
_TRIES = 3  # for a free port that another program took meanwhile


class CannotListen(InvalidRequest):
    """The address is taken, or not ours."""

    code = "cannot_listen"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Tls(msgspec.Struct, frozen=True):
    """The files of a certificate and its key."""

    cert: Path
    key: Path | None = None  # None: it is in the file of the certificate


class HttpServer:
    """Answers on a socket that listens already. `address` is where."""

    def __init__(
        self,
        app: ASGIApp,
        listening: socket.socket,
        *,
        http2: bool = False,
        tls: Tls | None = None,
        grace: int = 3,
        max_message_bytes: int = 32 * 1024 * 1024,
    ) -> None:
        self._listening = listening
        host, port = listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{'https' if tls else 'http'}://{shown}:{port}"
        self._grace = grace
        make = _hypercorn if http2 else _uvicorn
        self._run, self._started, self._stop = make(UnreadBody(app), listening, tls, grace, max_message_bytes)
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._running = asyncio.get_running_loop().create_task(self._run())
        while not self._started():
            if self._running.done():
                await self._running
                raise CannotListen(f"nothing answers at {self.address}")
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        """Answers the open requests, takes no new ones, and cuts off connections that stay open for longer than the
        grace."""
        self._stop()
        if self._running is not None:
            with contextlib.suppress(TimeoutError):
                # hypercorn 0.18 waits without limit for connections that stay open, from Python 3.12 on.
                async with asyncio.timeout(self._grace + 2):
                    await asyncio.gather(self._running, return_exceptions=True)
        self._listening.close()


class Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers: the program that starts it has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


_Made = tuple[Callable[[], Coroutine[Any, Any, None]], Callable[[], bool], Callable[[], None]]


def _uvicorn(app: ASGIApp, listening: socket.socket, tls: Tls | None, grace: int, max_bytes: int) -> _Made:
    config = uvicorn.Config(
        app, http="httptools", loop="asyncio", lifespan="off", log_config=None, access_log=False, server_header=False,
        proxy_headers=False, timeout_keep_alive=75, timeout_graceful_shutdown=grace,
        # The implementation that is named is the one without deprecated parts. A peer that reads slowly answers pings
        # late; compressing every token costs more than it saves.
        ws="websockets-sansio", ws_max_size=max_bytes, ws_ping_timeout=60.0, ws_per_message_deflate=False,
        ssl_certfile=tls.cert if tls else None, ssl_keyfile=tls.key if tls else None,
    )  # fmt: skip
    logging.getLogger("uvicorn.error").addFilter(_worth_a_line)
    server = Uvicorn(config)

    def stop() -> None:
        server.should_exit = True

    return (lambda: server.serve([listening])), (lambda: server.started), stop


def _hypercorn(app: ASGIApp, listening: socket.socket, tls: Tls | None, grace: int, max_bytes: int) -> _Made:
    """Serves HTTP/1.1 and HTTP/2 on one port. In cleartext a client speaks HTTP/2 by prior knowledge, or asks to
    upgrade."""
    extras.require("HTTP/2", "hypercorn", "http2", "hypercorn")
    from hypercorn.asyncio.run import worker_serve
    from hypercorn.config import Config, Sockets
    from hypercorn.utils import wrap_app

    log = logging.getLogger("interlingua.http2")
    log.setLevel(logging.WARNING)  # its starter reports the address
    config = Config()
    config.errorlog = log
    config.include_server_header = False
    config.keep_alive_timeout = 75.0
    config.keep_alive_max_requests = 1_000_000
    config.graceful_timeout = float(grace)
    config.backlog = _BACKLOG
    config.websocket_max_message_size = max_bytes
    if tls is not None:
        config.certfile = str(tls.cert)
        config.keyfile = str(tls.key or tls.cert)
    stopping = asyncio.Event()
    started = False

    async def until_stopped() -> None:  # hypercorn begins to wait when it listens
        nonlocal started
        started = True
        await stopping.wait()

    listening.setblocking(False)
    sockets = Sockets([listening] if tls else [], [] if tls else [listening], [])

    async def run() -> None:
        wrapped = wrap_app(app, config.wsgi_max_body_size, "asgi")  # type: ignore[arg-type]
        await worker_serve(wrapped, config, sockets=sockets, shutdown_trigger=until_stopped)

    return run, (lambda: started), stopping.set


class OwnPorts:
    """Runs servers of single doors, beside the shared one. They end together."""

    def __init__(self) -> None:
        self._servers: list[HttpServer] = []

    async def serve(
        self,
        app: ASGIApp,
        host: str,
        ports: Sequence[int],
        *,
        option: str = "--port",
        http2: bool = False,
        tls: tuple[Path, Path | None] | None = None,
    ) -> str:
        """Serves an app on the first of the ports that is free. Returns the address."""
        listening = listen(host, ports, option=option)
        try:
            server = HttpServer(app, listening, http2=http2, tls=Tls(*tls) if tls is not None else None)
            await server.start()
        except BaseException:
            listening.close()
            raise
        self._servers.append(server)
        return server.address

    async def close(self) -> None:
        servers, self._servers = self._servers, []
        for server in servers:
            await server.close()


_EXPECTED = (
    "ASGI callable returned without completing handshake.",
    "ASGI callable returned without completing response.",
)


def _worth_a_line(record: logging.LogRecord) -> bool:
    """Returns whether to log a record of the server. Leaves out streams that are cut off because the server stops: one
    line says so, without a traceback for each. Also leaves out the lines of uvicorn about every refused WebSocket, and
    about an answer that a replica did not end."""
    if record.msg in _EXPECTED:
        return False
    if record.exc_info is not None and isinstance(record.exc_info[1], StoreError):
        # A stream that was open when the store went away: its reader comes again, and no code here is to blame.
        record.msg, record.args, record.exc_info = "a stream was cut off: %s", (record.exc_info[1],), None
        return True
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


def listen(host: str, ports: int | Sequence[int], *, option: str = "--port") -> socket.socket:
    """A socket on the first of the ports that is free, before anything else has begun."""
    wanted = [ports] if isinstance(ports, int) else list(ports)
    for port in wanted[:-1] + [port for port in wanted[-1:] if port == 0] * _TRIES:
        with contextlib.suppress(_Taken):
            return _bind(host, port, option)
    return _bind(host, wanted[-1], option)


class _Taken(CannotListen):
    """Somebody else listens there."""


def _bind(host: str, port: int, option: str) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # asyncio turns Nagle's algorithm off only where a socket names its protocol, and this one does not: an answer
        # whose head and body are two writes would wait 40 ms for the client's delayed acknowledgement. Connections
        # inherit this.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listening.bind((host, port))
        # At once: until one of them listens, two processes can be bound to the same port, also where each asked for any
        # free one, and the second would learn of it when everything else has begun.
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise _Taken(f"port {port} of {host} is taken", hint=f"choose another one with {option}") from None
        raise CannotListen(f"cannot listen on port {port} of {host}: {error.strerror or error}") from error
    return listening
