"""Listeners for peers: WebSockets (the token is the path) and lines over TCP (the token is in the first line). They
decide who may connect, and hand over a channel; they do not read the frames on it.

Strangers, which have not shown the token, have a limited number of places, and for a short time; when more come, the
oldest of them is closed, so that no stranger can keep others out by connecting. A peer that shows the token when all
places of peers are taken gets an answer that says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal
from urllib.parse import unquote

import msgspec
from websockets.http11 import Request
from websockets.server import ServerProtocol

from ....model.errors import InterlinguaError
from ....security.origins import HostPolicy
from ....transports import json_text
from ....transports.channel import Channel
from .sockets import LineSocket, WebSocket, Wire, quiet

log = logging.getLogger("interlingua.peer")

INVALID_TOKEN = b'{"type":"error","code":"invalid_token"}'


class Incoming(msgspec.Struct, frozen=True):
    """The known facts of a connection besides its channel."""

    remote: str  # address
    headers: Mapping[str, str]  # of the handshake, names in lower case; none where there is no such thing
    binding: Literal["ws", "tcp", "relay"]


OnConnection = Callable[[Channel, Incoming], Awaitable[None]]
"""Called once per connection that was let in; the connection is closed when it returns."""


_TOO_MANY = "there are too many connections"
_TOO_MANY_LINE = b'{"type":"error","code":"too_many_connections"}'
_LAST_WORDS = 2.0  # seconds for a connection to take why it is ended
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class ListenLimits(msgspec.Struct, kw_only=True, frozen=True):
    connections: int = 1000
    strangers: int = 512  # all that connect in one turn of the loop are strangers until the next one
    stranger_seconds: float = 10.0
    ping_every: float = 20.0
    pong_within: float = 20.0


class _Hello(msgspec.Struct):
    type: str
    token: str


class Listener:
    """A listener at an address. Made by `listen_ws` and `listen_tcp`."""

    def __init__(self, on_connection: OnConnection, check_token: Callable[[str], bool], limits: ListenLimits) -> None:
        self.host = ""
        self.port = 0
        self.refused = 0  # connections that were not let in
        self.limits = limits
        self.check_token = check_token
        self._on_connection = on_connection
        self._server: asyncio.Server | None = None
        self._open: set[Wire] = set()
        self._admitted: set[Wire] = set()
        self._strangers: dict[Wire, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> int:
        """The number of admitted peers that are still connected."""
        return len(self._admitted)

    @property
    def strangers(self) -> int:
        """The number of connections that have not shown the token yet."""
        return len(self._strangers)

    @property
    def full(self) -> bool:
        return len(self._admitted) >= self.limits.connections

    async def close(self) -> None:
        """Stops listening, and closes all open connections."""
        if self._server is not None:
            self._server.close()
        for wire in list(self._strangers):
            wire.abort()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for wire in list(self._open):
            wire.abort()
            await wire.ended.wait()
        if self._server is not None:
            await self._server.wait_closed()

    async def start(
        self, make: Callable[[Listener], Wire], host: str, port: int, tls: ssl.SSLContext | None
    ) -> Listener:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: make(self),
            host or None,
            port,
            ssl=tls,
            reuse_address=True,
            backlog=1024,
            ssl_handshake_timeout=self.limits.stranger_seconds if tls else None,
        )
        self.host, self.port = self._server.sockets[0].getsockname()[:2]
        return self

    # -- for connections ----------------------------------------------------------------------------------

    def knocked(self, wire: Wire) -> None:
        """Takes a new connection of a stranger."""
        if len(self._strangers) >= self.limits.strangers:
            oldest = next(iter(self._strangers))
            self._strangers.pop(oldest).cancel()
            self.refused += 1
            oldest.turn_away("others are waiting")
        self._open.add(wire)
        loop = asyncio.get_running_loop()
        self._strangers[wire] = loop.call_later(self.limits.stranger_seconds, wire.abort, "it did not say who it is")

    def admitted(self, wire: Wire, incoming: Incoming) -> None:
        timer = self._strangers.pop(wire, None)
        if timer is not None:
            timer.cancel()
        self._admitted.add(wire)
        self.run(self._serve(wire, incoming))

    def run(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def left(self, wire: Wire) -> None:
        self._open.discard(wire)
        self._admitted.discard(wire)
        timer = self._strangers.pop(wire, None)
        if timer is not None:
            timer.cancel()

    async def turn_down(self, wire: Wire, why: bytes = INVALID_TOKEN) -> None:
        """Reports why a connection is refused, and closes it. On a WebSocket the upgrade has succeeded by then: the
        reference (2.19) does it so, and its clients would take a refused upgrade for a host that is down, and try again
        for ever."""
        self.refused += 1
        wire.send(why)
        await wire.close()

    async def _serve(self, wire: Wire, incoming: Incoming) -> None:
        try:
            await self._on_connection(wire, incoming)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("the connection from %s ended by an error", incoming.remote)
        finally:
            await asyncio.shield(asyncio.ensure_future(wire.close()))


# -- WebSocket --------------------------------------------------------------------------------------------------


async def listen_ws(
    host: str,
    port: int,
    on_connection: OnConnection,
    *,
    check_token: Callable[[str], bool],
    max_bytes: int,
    tls: ssl.SSLContext | None = None,
    policy: HostPolicy | None = None,
    limits: ListenLimits | None = None,
) -> Listener:
    """Listens for peers at ws://HOST:PORT/TOKEN (wss with a TLS context). `check_token` compares in constant time."""
    origins = policy or HostPolicy.for_bind(host)
    listener = Listener(on_connection, check_token, limits or ListenLimits())
    return await listener.start(lambda it: _ServedWebSocket(it, origins, max_bytes), host, port, tls)


class _ServedWebSocket(WebSocket):
    def __init__(self, listener: Listener, policy: HostPolicy, max_bytes: int) -> None:
        limits = listener.limits
        self._server = ServerProtocol(max_size=max_bytes, logger=quiet)
        super().__init__(self._server, max_bytes, ping_every=limits.ping_every, pong_within=limits.pong_within)
        self._listener = listener
        self._policy = policy

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._listener.knocked(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._listener.left(self)

    def turn_away(self, why: str) -> None:
        if self._open or self._transport is None:
            self.abort(why)
            return
        self.why, self._closed = why, True
        self._transport.write(_BUSY)
        self._transport.close()
        self._loop.call_later(_LAST_WORDS, self.abort)

    def handshake(self, head: bytes) -> None:
        protocol = self._server
        protocol.receive_data(head)
        requests = [event for event in protocol.events_received() if isinstance(event, Request)]
        if not requests:  # no HTTP, or too much of it: the protocol answers that
            self._listener.refused += 1
            self._hand_over()
            return
        [request] = requests
        headers = {name.lower(): value for name, value in request.headers.raw_items()}
        response = protocol.accept(request)
        if "origin" in headers:  # only a browser sends it, and needs this check
            try:
                self._policy.check(headers)
            except InterlinguaError as error:
                response = protocol.reject(http.HTTPStatus.FORBIDDEN, f"{error}\n")
        token = unquote(request.path.partition("?")[0].strip("/"))
        known = self._listener.check_token(token)
        if known and self._listener.full and response.status_code == http.HTTPStatus.SWITCHING_PROTOCOLS:
            response = protocol.reject(http.HTTPStatus.SERVICE_UNAVAILABLE, f"{_TOO_MANY}\n")
        protocol.send_response(response)
        if response.status_code != http.HTTPStatus.SWITCHING_PROTOCOLS:
            self._listener.refused += 1
            self._hand_over()
            return
        self._hand_over()
        self.opened()
        if known:
            self._listener.admitted(self, Incoming(self.remote, headers, "ws"))
        else:
            self._listener.run(self._listener.turn_down(self))


# -- lines over TCP ---------------------------------------------------------------------------------------------


async def listen_tcp(
    host: str,
    port: int,
    on_connection: OnConnection,
    *,
    check_token: Callable[[str], bool],
    max_bytes: int,
    tls: ssl.SSLContext | None = None,
    limits: ListenLimits | None = None,
) -> Listener:
    """Listens for peers at tcp://HOST:PORT, whose first line is {"type":"acp.hello","token":…}."""
    listener = Listener(on_connection, check_token, limits or ListenLimits())
    return await listener.start(lambda it: _ServedLines(it, max_bytes), host, port, tls)


class _ServedLines(LineSocket):
    def __init__(self, listener: Listener, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self._listener = listener

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._listener.knocked(self)
        self._listener.run(self._greet())

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._listener.left(self)

    async def _greet(self) -> None:
        frames = await self.receive()
        if not frames:
            return
        try:
            hello = json_text.decode_as(frames[0], msgspec.json.Decoder(_Hello).decode)
            welcome = hello.type == "acp.hello" and self._listener.check_token(hello.token)
        except ValueError:
            welcome = False
        if not welcome or self._listener.full:
            with contextlib.suppress(ConnectionError):
                await self._listener.turn_down(self, _TOO_MANY_LINE if welcome else INVALID_TOKEN)
            return
        self.give_back(frames[1:])
        self._listener.admitted(self, Incoming(self.remote, {}, "tcp"))
