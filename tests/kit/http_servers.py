"""HTTP servers on loopback that have one answer, and keep the requests; with or without TLS."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator


class Server:
    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.port = 0
        self.requests: list[bytes] = []
        self.names: list[str | None] = []  # what TLS clients asked for
        self.connections = 0

    def header(self, name: str, request: int = -1) -> str | None:
        for line in self.requests[request].decode().split("\r\n")[1:]:
            key, _, value = line.partition(": ")
            if key.lower() == name:
                return value
        return None


@contextlib.asynccontextmanager
async def serve(
    answer: bytes = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Server]:
    """Every request on a connection gets the same answer; the connection stays open as long as the client wants."""
    server = Server(answer)
    open_connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        task = asyncio.current_task()
        assert task is not None
        open_connections[task] = writer
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                _, told, length = head.lower().partition(b"\r\ncontent-length:")
                if told:
                    await reader.readexactly(int(length.partition(b"\r\n")[0]))
                server.requests.append(head)
                writer.write(server.answer)
                await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()

    if tls is not None:
        tls.sni_callback = lambda _socket, name, _context: server.names.append(name)
    listening = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for writer in open_connections.values():
            writer.transport.abort()
        await asyncio.gather(*open_connections)
        await listening.wait_closed()


@contextlib.asynccontextmanager
async def answering(status: int, body: bytes = b"", kind: str = "application/json") -> AsyncIterator[str]:
    """The address of a server that has one answer for everything, also for requests with a body."""
    head = f"HTTP/1.1 {status} So\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    async with serve(head + body) as server:
        yield f"http://127.0.0.1:{server.port}"
