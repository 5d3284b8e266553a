"""Those who listen to a node's /stream: many bare connections in one process, which note when each event came.

`python -m bench.peer_streams` reads a job from the first line of stdin and says when all have been greeted; at the next
line, which tells the events that were to come, it waits for them all and writes when each came.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from .load import raise_file_limit
from .servers import ROOT

Heard = list[tuple[int, int]]  # seq of each event, and when it came, in nanoseconds of the clock that all share


class Job(msgspec.Struct):
    port: int
    readers: int


class Reader(asyncio.Protocol):
    """One stream. Raises where a number is missing, or comes twice."""

    def __init__(self, port: int) -> None:
        self._request = f"GET /stream HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n".encode()
        self._buffer = b""
        self._payload = b""
        self._headed = False
        self._last = -1
        self._upto: int | None = None
        self.heard: Heard = []
        loop = asyncio.get_running_loop()
        self.greeted: asyncio.Future[None] = loop.create_future()
        self.over: asyncio.Future[None] = loop.create_future()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._request)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(ConnectionError(f"the node closed a stream: {error}"))

    def _fail(self, error: Exception) -> None:
        for waiting in (self.greeted, self.over):
            if not waiting.done():
                waiting.set_exception(error)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        try:
            self._read(data, now)
        except Exception as error:
            self._fail(error)

    def _read(self, data: bytes, now: int) -> None:
        self._buffer += data
        if not self._headed:
            head, found, rest = self._buffer.partition(b"\r\n\r\n")
            if not found:
                return
            if not head.startswith(b"HTTP/1.1 200 "):
                raise RuntimeError(f"answered {self._buffer!r}")
            self._headed, self._buffer = True, rest
        buffer, at = self._buffer, 0
        while (end := buffer.find(b"\r\n", at)) >= 0:
            size = int(buffer[at:end], 16)
            if len(buffer) < end + 4 + size:
                break
            self._payload += buffer[end + 2 : end + 2 + size]
            at = end + 4 + size
        self._buffer = buffer[at:]
        *events, self._payload = self._payload.split(b"\n\n")
        for event in events:
            self._event(event, now)

    def _event(self, event: bytes, now: int) -> None:
        if self._last < 0:
            self._last = msgspec.json.decode(event[event.index(b"data: ") + 6 :])["seq"]
            self.greeted.set_result(None)
            return
        at = event.index(b"id: ") + 4
        seq = int(event[at : event.index(b"\n", at)])
        if seq != self._last + 1:
            raise RuntimeError(f"event {seq} came after event {self._last}")
        self._last = seq
        self.heard.append((seq, now))
        self._look()

    def wait(self, upto: int) -> None:
        self._upto = upto
        self._look()

    def _look(self) -> None:
        if self._upto is not None and self._last >= self._upto and not self.over.done():
            self.over.set_result(None)


async def read(job: Job) -> list[Reader]:
    loop = asyncio.get_running_loop()
    readers = []
    for _ in range(job.readers):
        readers.append((await loop.create_connection(lambda: Reader(job.port), "127.0.0.1", job.port))[1])
        await readers[-1].greeted
    return readers


async def finish(readers: list[Reader], events: list[int]) -> list[Heard]:
    """When the events came to each reader."""
    for reader in readers:
        reader.wait(events[-1])
    await asyncio.gather(*(reader.over for reader in readers))
    wanted = set(events)
    return [[(seq, at) for seq, at in reader.heard if seq in wanted] for reader in readers]


async def main() -> None:
    raise_file_limit()
    gc.disable()  # a pause of the readers would count as one of the node
    readers = await read(msgspec.json.decode(sys.stdin.buffer.readline(), type=Job))
    say(None)
    line = await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.readline)
    say(await finish(readers, msgspec.json.decode(line, type=list[int])))
    for reader in readers:
        reader.transport.abort()


def say(what: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(what) + b"\n")
    sys.stdout.flush()


class Listeners:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def heard(self, events: list[int]) -> list[Heard]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(events) + b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("not every event came to everybody")
        return msgspec.json.decode(line, type=list[Heard])


@contextlib.asynccontextmanager
async def listening(port: int, readers: int) -> AsyncIterator[Listeners]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.peer_streams", cwd=ROOT, stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, limit=2**26,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(msgspec.json.encode(Job(port, readers)) + b"\n")
        if not await process.stdout.readline():
            raise RuntimeError("not everybody could listen")
        yield Listeners(process)
    finally:
        process.stdin.close()
        await process.wait()


if __name__ == "__main__":
    asyncio.run(main())
