"""Connects to a peer: by a WebSocket (acp://, acps://), by lines over TCP (tcp://), or by the pipes of a process.

Returns a channel or raises an error in plain words; `Backoff` and its caller decide about retries.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from websockets.client import ClientProtocol
from websockets.uri import parse_uri

from ....transports.channel import Channel, TooLong
from ....transports.process.child_process import Child, Clean, Output, QuietChannel, environment
from ....transports.process.pipes import PipeChannel, divert_stdio
from ..wire.links import DIRECT, Link
from .sockets import LineSocket, WebSocket, Wire, quiet

log = logging.getLogger("interlingua.peer")

_HEAD_START = 0.25  # seconds that an address has before the next one is tried beside it

W = TypeVar("W", bound=Wire)


def trusting(certificates: Path | str | None) -> ssl.SSLContext | None:
    """Returns a TLS context that trusts these authorities beside those of the system; None means those of the system
    alone."""
    if certificates is None:
        return None
    context = ssl.create_default_context()
    context.load_verify_locations(certificates)
    return context


class Backoff:
    """The wait before the next try: longer each time, and random, so that many peers that lost the same peer do not all
    return at once. A connection that lasted a while makes the next wait short again; one that was only accepted does
    not, or a peer that falls over would be called every second for ever."""

    def __init__(
        self, first: float = 1.0, last: float = 30.0, *, lasting: float = 10.0, chance: random.Random | None = None
    ) -> None:
        self._first, self._last = first, last
        self._lasting = lasting
        self._chance = chance or random.Random()
        self.tries = 0

    def next(self) -> float:
        """Returns the seconds to wait now."""
        longest = min(self._last, self._first * 2.0 ** min(self.tries, 60))
        self.tries += 1
        return self._chance.uniform(0.0, longest)

    def lasted(self, seconds: float) -> None:
        """Notes how long a connection lasted."""
        if seconds >= self._lasting:
            self.tries = 0


async def dial(
    link: Link,
    *,
    max_bytes: int,
    timeout: float = 10.0,
    tls: ssl.SSLContext | None = None,
    address: str | None = None,
    ping_every: float = 20.0,
    pong_within: float = 20.0,
) -> Channel:
    """Connects to the peer of a link. `address` is the address of its host, where it is already known.

    Raises ConnectionError. A wrong token is no error here: the peer takes the connection, and reports it in its first
    frame.
    """
    context = (tls or ssl.create_default_context()) if link.secure else None
    try:
        async with asyncio.timeout(timeout):
            if link.scheme in DIRECT:
                client = _DialledWebSocket(link, max_bytes, ping_every, pong_within)
                await _connect(client, link, context, address)
                try:
                    await client.answered
                except BaseException:
                    client.abort()
                    raise
                return client
            if link.scheme == "tcp":
                lines = await _connect(LineSocket(max_bytes), link, context, address)
                lines.send(msgspec.json.encode({"type": "acp.hello", "token": link.token}))
                return lines
    except TimeoutError:
        raise ConnectionError(f"{link.shown} did not answer within {timeout:g} s") from None
    except ssl.SSLCertVerificationError as error:
        raise ConnectionError(f"{link.shown} has a certificate that is not trusted: {error.verify_message}") from error
    except ConnectionError as error:
        raise ConnectionError(f"{link.shown} cannot be reached: {error.strerror or error}") from error
    except OSError as error:
        raise ConnectionError(f"{link.shown} cannot be reached: {error.strerror or error}") from error
    raise ConnectionError(f"{link.shown} is no link to connect to directly")


async def _connect(made: W, link: Link, context: ssl.SSLContext | None, address: str | None) -> W:
    loop = asyncio.get_running_loop()
    connected = await _first_to_answer(loop, address or link.host, link.port)
    try:
        await loop.create_connection(
            lambda: made, sock=connected, ssl=context, server_hostname=link.host if context else None
        )
    except BaseException:
        connected.close()
        raise
    return made


async def _first_to_answer(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    """Connects to the address of a host that answers first. Each has a moment for itself before the next is tried
    beside it, as one of two families of addresses may lead nowhere."""
    waiting = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    running: set[asyncio.Task[socket.socket]] = set()
    error: BaseException = OSError(f"{host} has no address")
    try:
        while waiting or running:
            if waiting:
                family, _, _, _, address = waiting.pop(0)
                running.add(loop.create_task(_socket_to(loop, family, address)))
            done, _ = await asyncio.wait(
                running, timeout=_HEAD_START if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for ended in done:
                running.discard(ended)
                error = ended.exception() or error
                if ended.exception() is None:
                    return ended.result()
        raise error
    finally:
        for left in running:
            left.cancel()
        for too_late in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(too_late, socket.socket):
                too_late.close()


async def _socket_to(loop: asyncio.AbstractEventLoop, family: int, address: Any) -> socket.socket:
    connecting = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        connecting.setblocking(False)
        await loop.sock_connect(connecting, address)
    except BaseException:
        connecting.close()
        raise
    return connecting


class _DialledWebSocket(WebSocket):
    def __init__(self, link: Link, max_bytes: int, ping_every: float, pong_within: float) -> None:
        self._client = ClientProtocol(parse_uri(link.url), max_size=max_bytes, logger=quiet)
        super().__init__(self._client, max_bytes, ping_every=ping_every, pong_within=pong_within)
        self.answered: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._client.send_request(self._client.connect())
        self._hand_over()

    def handshake(self, head: bytes) -> None:
        status = head.partition(b"\r\n")[0].split(b" ", 2)
        if len(status) < 2 or not status[0].startswith(b"HTTP/1."):
            self._refuse("it does not speak HTTP")
        elif status[1] != b"101":
            said = b" ".join(status[1:])[:100].decode(errors="replace")
            self._refuse(f"it answered {said} and no WebSocket")
        else:
            self._client.receive_data(head)
            self._client.events_received()
            if self._client.handshake_exc is not None:
                self._refuse(str(self._client.handshake_exc))
            else:
                self.opened()
                if not self.answered.done():
                    self.answered.set_result(None)

    def _refuse(self, why: str) -> None:
        if not self.answered.done():
            self.answered.set_exception(ConnectionError(why))
        self.abort(why)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self.answered.done():
            self.answered.set_exception(ConnectionError(self.why or "it hung up before it answered"))


# -- stdio ------------------------------------------------------------------------------------------------------


def stdio_channel(*, max_bytes: int) -> Channel:
    """Returns a channel over our own stdin and stdout, for the process that started us. All prints go to stderr from
    now on."""
    reads, writes = divert_stdio()
    return PipeChannel(reads, writes, max_line=max_bytes)


class PeerProcess(Child):
    """A peer in a child process, reached by its stdin and stdout."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        pipes: PipeChannel,
        stderr: Output,
        guard: object,
        clean: Clean,
        log: logging.Logger,
    ) -> None:
        super().__init__(process, pipes, stderr, guard, clean, log)  # type: ignore[arg-type]
        self.channel = _ProcessChannel(pipes, clean)


class _ProcessChannel(QuietChannel):
    max_bytes = 0

    async def receive(self) -> list[bytes]:
        found = await super().receive()
        return [
            frame if type(frame) is TooLong or len(frame) <= self.max_bytes else TooLong.of(frame, self.max_bytes)
            for frame in found
        ]

    def _is_message(self, frame: bytes) -> bool:
        # Unlike JSON-RPC, frames have no member that distinguishes them from a line of a structured log.
        if frame.lstrip()[:1] == b"{":
            return True
        if frame:
            self.noise += 1
            if not self.first_noise:
                self.first_noise = self._clean(frame[:500].decode(errors="replace"))[:200]
        return False


async def start_process(
    command: Sequence[str],
    *,
    max_bytes: int,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    clean: Clean = str,
) -> PeerProcess:
    """Starts a peer. Its `channel` is open until it ends or `end()` is called. Raises Unavailable."""
    child = await PeerProcess.start(
        list(command), cwd or str(Path.cwd()), environment(os.environ) if env is None else env, clean=clean, log=log
    )
    assert isinstance(child, PeerProcess)
    assert isinstance(child.channel, _ProcessChannel)
    child.channel.max_bytes = max_bytes
    return child
