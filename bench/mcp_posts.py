"""The client of `mcp_client` over Streamable HTTP, in a process of its own: bare connections that stay open.

`python -m bench.mcp_posts` reads a job from stdin and writes what it found to stdout. Each connection is a client with
a session of its own, where the revision has sessions.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time

import msgspec

from .load import raise_file_limit, time_of
from .mcp_client import FIRST, GREETING, HANDSHAKE, INITIALIZED, MODERN, Asks, Found, check, said

PATH = "/mcp"


class Job(msgspec.Struct):
    port: int
    revision: str
    asks: Asks
    count: int
    connections: int
    server: int = 0  # process whose time is looked at
    key: str = ""  # an API key, sent with every request


class Posting(asyncio.Protocol):
    """One connection: a POST, its answer, and so on."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.answers: list[tuple[bytes, bytes]] = []  # heads and bodies
        self._pieces: list[bytes] = []
        self._head = b""
        self._left = 0  # bytes of a body whose length is known
        self._chunked = False
        self._tail = b""
        self._loop = asyncio.get_running_loop()
        self._answered: asyncio.Future[None] = self._loop.create_future()
        self.closed: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if not self._answered.done():
            self._answered.set_exception(ConnectionError(f"the server closed a connection: {error}"))
        self.closed.set_result(None)

    async def post(self, data: bytes) -> None:
        self._answered = self._loop.create_future()
        self.transport.write(data)
        await self._answered

    def data_received(self, data: bytes) -> None:
        if not self._head:
            self._tail += data
            head, found, data = self._tail.partition(b"\r\n\r\n")
            if not found:
                return
            self._head, self._tail = head, b""
            told = head.lower()
            self._chunked = b"transfer-encoding: chunked" in told
            at = told.find(b"content-length: ")
            self._left = int(told[at + 16 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        self._pieces.append(data)
        if self._chunked:
            self._tail = (self._tail + data)[-7:]
            over = self._tail == b"\r\n0\r\n\r\n"
        else:
            self._left -= len(data)
            over = self._left <= 0
        if over:
            self.answers.append((self._head, b"".join(self._pieces)))
            self._head, self._tail, self._pieces = b"", b"", []
            self._answered.set_result(None)


def _joined(body: bytes) -> bytes:
    """What came in chunks."""
    chunks, at = list[bytes](), 0
    while True:
        end = body.index(b"\r\n", at)
        size = int(body[at:end], 16)
        if size == 0:
            return b"".join(chunks)
        chunks.append(body[end + 2 : end + 2 + size])
        at = end + 4 + size


def messages(head: bytes, body: bytes) -> list[bytes]:
    """The messages of one answer: a body of JSON, or the events of a stream."""
    if not head.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"answered {head!r} {body[:2000]!r}")
    if b"text/event-stream" not in head.lower():
        return [body]
    # Where the run was over at once, so is its stream, and it has a length.
    whole = body if b"content-length: " in head.lower() else _joined(body)
    lines = whole.replace(b"\r\n", b"\n").split(b"\n")
    found = [line[5:].strip() for line in lines if line.startswith(b"data:")]
    return [data for data in found if data]  # the first event may have only an id


class Load:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.modern = job.revision == MODERN
        common = [
            f"POST {PATH} HTTP/1.1",
            f"host: 127.0.0.1:{job.port}",
            "content-type: application/json",
            "accept: application/json, text/event-stream",
            *([f"x-api-key: {job.key}"] if job.key else []),
        ]
        meta = {}
        if self.modern:
            common += [f"mcp-protocol-version: {MODERN}", "mcp-method: agents/run", f"mcp-name: {job.asks.agent}"]
            prefix = "io.modelcontextprotocol/"
            meta = {f"{prefix}protocolVersion": MODERN, f"{prefix}clientCapabilities": {}}
        self._common = "\r\n".join(common)
        self._halves = job.asks.halves(meta)
        self._next = FIRST

    def post(self, body: bytes, headers: str) -> bytes:
        return f"{self._common}\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body

    async def begin(self, client: Posting) -> str:
        """Make a session. Returns the headers that belong to it."""
        if self.modern:
            return ""
        hello = msgspec.json.encode({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": GREETING})
        await client.post(self.post(hello, ""))
        head, body = client.answers.pop()
        result = said.decode(messages(head, body)[0]).result
        if result is None or result["protocolVersion"] != HANDSHAKE:
            raise RuntimeError(f"initialize was answered with {body!r}")
        at = head.lower().index(b"mcp-session-id: ") + 16
        session = head[at:].split(b"\r\n", 1)[0].decode()
        headers = f"mcp-session-id: {session}\r\nmcp-protocol-version: {HANDSHAKE}\r\n"
        await client.post(self.post(msgspec.json.encode(INITIALIZED), headers))
        head, body = client.answers.pop()
        if not head.startswith(b"HTTP/1.1 202 "):
            raise RuntimeError(f"initialized was answered with {head!r} {body!r}")
        return headers

    async def _ask(self, client: Posting, headers: str, last: int) -> list[int]:
        asks, halves = self.job.asks, self._halves
        head = self.post(b"0" * len(asks.request(halves, FIRST)), headers).partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
        ids = []
        while self._next < last:
            id_ = self._next
            self._next += 1
            ids.append(id_)
            await client.post(head + asks.request(halves, id_))
        return ids

    async def run(self) -> Found:
        job = self.job
        loop = asyncio.get_running_loop()
        clients: list[Posting] = []
        try:
            for _ in range(job.connections):
                clients.append((await loop.create_connection(Posting, "127.0.0.1", job.port))[1])
            headers = [await self.begin(client) for client in clients]
            used, begun, cpu = time_of(job.server), time.perf_counter(), time.process_time()
            last = self._next + job.count
            asked = await asyncio.gather(
                *(self._ask(client, own, last) for client, own in zip(clients, headers, strict=True))
            )
            seconds = time.perf_counter() - begun
            busy, used = time.process_time() - cpu, time_of(job.server) - used
        finally:
            for client in clients:
                client.transport.abort()
            await asyncio.gather(*(client.closed for client in clients))
        carried = 0
        for client, ids in zip(clients, asked, strict=True):
            for id_, (head, body) in zip(ids, client.answers, strict=True):
                carried += check(messages(head, body), [id_], job.asks)
        return Found(job.count, job.count * job.asks.tokens, carried, seconds, busy / seconds, used)


async def main() -> None:
    raise_file_limit()
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    gc.freeze()
    gc.disable()  # a pause of the client would count as one of the server
    sys.stdout.buffer.write(msgspec.json.encode(await Load(job).run()))


if __name__ == "__main__":
    asyncio.run(main())
