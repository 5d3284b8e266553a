"""Carries frames between a node and the checker: as a peer that the node connects to, as a guest of its link, and over
the pipes of a command.

They keep what came and wake the reader; they know nothing of the meaning of frames.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import secrets
import socket
import urllib.parse
from collections.abc import AsyncIterator, Callable
from typing import Any

import websockets
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from interlingua.model.errors import Unavailable
from interlingua.transports.raw_client import Heard, Pipes

from ..base import Gone, Subject

Frame = dict[str, Any]
Wanted = Callable[[Frame], bool]

_LARGEST = 64 * 1024 * 1024


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def new_id(kind: str = "msg") -> str:
    return f"{kind}_{secrets.token_hex(8)}"


def introduction(card: Frame) -> Frame:
    """Returns the frame that shows a card to the other end."""
    return {"type": "acp.agent_card", "message_id": new_id("card"), "ts": now(), "card": card}


class Wire(Heard):
    """A connection; its messages are frames."""

    async def put(self, frame: Any) -> None:
        raise NotImplementedError

    def find(self, wanted: Wanted, start: int = 0) -> Frame | None:
        return next((frame for frame in self.messages[start:] if wanted(frame)), None)


class SocketWire(Wire):
    """A WebSocket, of either side."""

    def __init__(self, subject: Subject, connection: Any) -> None:
        super().__init__(subject.patience, subject.quiet)
        self._connection = connection

    async def put(self, frame: Any) -> None:
        try:
            await self._connection.send(frame if isinstance(frame, str | bytes) else json.dumps(frame))
        except websockets.ConnectionClosed as error:
            raise Gone(f"the connection had ended: {error}") from None

    async def close(self) -> None:
        await self._connection.close()

    async def read(self) -> None:
        """Reads frames until the connection ends."""
        try:
            async for data in self._connection:
                await self.take(data.encode() if isinstance(data, str) else data)
        except websockets.ConnectionClosed:
            pass
        finally:
            await self.end()


class PipeWire(Pipes, Wire):
    """Lines of JSON, to a command and from it."""

    async def put(self, frame: Any) -> None:
        self.send(frame)


class Host:
    """A listening peer of the checker: a node that is given `link` can connect, and gets `card` at once."""

    def __init__(self, subject: Subject, card: Frame) -> None:
        self._subject = subject
        self.card = card
        self.link = ""
        self.paths: list[str] = []  # the requested path of each connection
        self.wires: list[SocketWire] = []
        self._news = asyncio.Condition()

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, subject: Subject, card: Frame) -> AsyncIterator[Host]:
        self = cls(subject, card)
        here = address_towards(subject)
        async with serve(self._came, here, 0, max_size=_LARGEST, ping_interval=None, close_timeout=0.2) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            self.link = f"acp://{here}:{port}/tok_{secrets.token_hex(8)}"
            yield self

    async def _came(self, connection: ServerConnection) -> None:
        wire = SocketWire(self._subject, connection)
        with contextlib.suppress(Gone):
            await wire.put(introduction(self.card))
        async with self._news:
            self.paths.append(connection.request.path if connection.request is not None else "")
            self.wires.append(wire)
            self._news.notify_all()
        await wire.read()

    async def connected(self, count: int = 1) -> SocketWire:
        """The connection with this number, as soon as it is there."""
        try:
            async with asyncio.timeout(self._subject.patience), self._news:
                while len(self.wires) < count:
                    await self._news.wait()
        except TimeoutError:
            raise Gone(f"nobody connected to {self.link} within {self._subject.patience:g} s") from None
        return self.wires[count - 1]


def address_towards(subject: Subject) -> str:
    """The address of this machine by which the server can reach it."""
    host = urllib.parse.urlsplit(subject.address or "").hostname or "127.0.0.1"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


@contextlib.asynccontextmanager
async def guest(subject: Subject, card: Frame) -> AsyncIterator[Wire]:
    """A connection to the node behind an acp:// link."""
    assert subject.address is not None
    link = urllib.parse.urlsplit(subject.address)
    scheme = "wss" if link.scheme == "acps" else "ws"
    url = f"{scheme}://{link.hostname}:{link.port or 7801}{link.path}"
    try:
        connection = await connect(url, max_size=_LARGEST, open_timeout=subject.patience, close_timeout=0.2, proxy=None)
    except (OSError, TimeoutError, websockets.WebSocketException) as error:
        raise Unavailable(f"nothing answers at {subject.address}: {str(error) or type(error).__name__}") from error
    wire = SocketWire(subject, connection)
    reading = asyncio.get_running_loop().create_task(wire.read())
    try:
        await wire.put(introduction(card))
        yield wire
    finally:
        await connection.close()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


@contextlib.asynccontextmanager
async def piped(subject: Subject, card: Frame) -> AsyncIterator[Wire]:
    """A connection to a node that is started for it."""
    async with PipeWire.open(subject) as wire:
        await wire.put(introduction(card))
        yield wire
