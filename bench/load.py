"""The load: one client for every server that is measured, in a process of its own.

`python -m bench.load` reads a job from stdin and writes what it found to stdout. The client is a bare asyncio protocol
that sends ready-made bytes over connections that stay open: it must cost far less than the servers do.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec


class Job(msgspec.Struct):
    port: int
    path: str
    body: dict[str, Any]
    connections: int
    count: int  # requests; each connection takes the next one when its last is answered
    streams: bool = False  # read event streams, else JSON answers
    tokens: int = 0  # that every stream must bring
    spread: float = 0.0  # seconds over which the connections begin
    server: int = 0  # process whose memory and time are looked at
    says: str = '"success"'  # what stands in every JSON answer
    key: str = ""  # an API key, sent with every request


class Found(msgspec.Struct):
    seconds: float  # from the first request to the last answer
    busy: float  # share of that time in which this client computed
    last: msgspec.Raw  # of JSON answers: the last body
    firsts: list[float] = []  # seconds from each request to its first event
    delays: list[float] = []  # seconds from each token's making to its arrival, sorted
    events: int = 0
    most: int = 0  # streams that were open at once
    server_time: float = 0.0  # seconds that the server computed, on all cores
    memory_before: int = 0
    memory_during: int = 0  # when the last stream had begun


class Update(msgspec.Struct):
    """One update of a stream, as both servers send them."""

    type: str
    status: str
    update: dict[str, Any] = {}
    values: dict[str, Any] = {}


_update = msgspec.json.Decoder(Update)


def token(index: int) -> str:
    """A token that says which it is and when it was made, by a clock that all processes of a machine share."""
    return f"{index}:{time.monotonic_ns()} "


def raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def memory_of(process: int) -> int:
    """Bytes of memory that a process holds now."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux
        shown = subprocess.run(["ps", "-o", "rss=", "-p", str(process)], capture_output=True, text=True, check=True)
        return int(shown.stdout) * 1024


def time_of(process: int) -> float:
    """Seconds that a process has computed so far; 0 where nobody can tell."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # not Linux
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Client(asyncio.Protocol):
    """One connection: a request, its answer, and so on until the load has no more."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._buffer = b""
        self._length = -1  # of the body that is being read; -1 while the head is
        self.transport: asyncio.Transport
        self.sent_at = 0
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._load.fail(ConnectionError(f"the server closed a connection: {error}"))
        self.closed.set_result(None)

    def begin(self) -> None:
        if self._load.left > 0:
            self._load.left -= 1
            self.sent_at = time.monotonic_ns()
            self.transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        try:
            self._buffer += data
            if self._length < 0 and not self._head():
                return
            self._body()
        except Exception as error:
            self._load.fail(error)

    def _head(self) -> bool:
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return False
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"answered {self._buffer!r}")
        at = head.find(b"content-length: ")
        self._length = int(head[at + 16 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        self._buffer = rest
        return True

    def _body(self) -> None:
        if len(self._buffer) >= self._length:
            body, self._buffer = self._buffer[: self._length], self._buffer[self._length :]
            if self._load.says not in body:
                raise RuntimeError(f"not what was asked for: {body!r}")
            self._load.last = body
            self._over()

    def _over(self) -> None:
        self._length = -1
        self.begin()
        self._load.answered()


class StreamClient(Client):
    """Reads event streams, and checks that every token of each came, once and in order."""

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self._renew()

    def _renew(self) -> None:
        self._payload = b""
        self._text: list[str] = []
        self._next = 0  # index of the token that comes next
        self._finished = False

    def _body(self) -> None:
        if self._length > 0:  # the run was over at once, and so is its stream
            if len(self._buffer) >= self._length:
                self._payload, self._buffer = self._buffer[: self._length], self._buffer[self._length :]
                self._end()
            return
        buffer, at = self._buffer, 0
        while (end := buffer.find(b"\r\n", at)) >= 0:
            size = int(buffer[at:end], 16)
            if len(buffer) < end + 4 + size:
                break
            self._payload += buffer[end + 2 : end + 2 + size]
            at = end + 4 + size
            if size == 0:
                self._buffer = buffer[at:]
                self._end()
                return
        self._buffer = buffer[at:]
        self._events()

    def _events(self) -> None:
        *events, self._payload = self._payload.split(b"\n\n")
        for event in events:
            data = event[event.index(b"data: ") + 6 :]
            self._told(_update.decode(data), time.monotonic_ns())

    def _told(self, update: Update, now: int) -> None:
        load = self._load
        load.found.events += 1
        if update.type == "custom":
            text = update.update["delta"]["text"]
            self._text.append(text)
            if self._next == 0:
                load.found.firsts.append((now - self.sent_at) / 1e9)
                load.first_event()
            for part in text.split():
                index, _, made = part.partition(":")
                if int(index) != self._next:
                    raise RuntimeError(f"token {index} came where token {self._next} belongs")
                self._next += 1
                load.found.delays.append((now - int(made)) / 1e9)
        elif update.status == "success":
            if update.values["text"] != "".join(self._text):
                raise RuntimeError("the tokens of a stream do not join to its result")
            self._finished = True
        else:
            raise RuntimeError(f"a stream said {update}")

    def _end(self) -> None:
        self._events()
        if not self._finished or self._next != self._load.job.tokens:
            raise RuntimeError(f"a stream ended with {self._next} of {self._load.job.tokens} tokens")
        self._renew()
        self._load.open -= 1
        self._over()


class Load:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.left = job.count
        self.waiting = job.count
        self.last = b"null"
        self.says = job.says.encode()
        self.open = 0
        self.begun = 0
        self.found = Found(0.0, 0.0, msgspec.Raw(b"null"))
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        body = msgspec.json.encode(job.body)
        key = f"x-api-key: {job.key}\r\n" if job.key else ""
        self.request = (
            f"POST {job.path} HTTP/1.1\r\nhost: 127.0.0.1:{job.port}\r\ncontent-type: application/json\r\n"
            f"{key}content-length: {len(body)}\r\n\r\n"
        ).encode() + body

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def answered(self) -> None:
        self.waiting -= 1
        if self.waiting == 0 and not self.done.done():
            self.done.set_result(None)

    def first_event(self) -> None:
        self.open += 1
        self.begun += 1
        self.found.most = max(self.found.most, self.open)
        if self.begun == self.job.connections and self.job.server:
            self.found.memory_during = memory_of(self.job.server)

    async def run(self) -> Found:
        job, found = self.job, self.found
        if job.server:
            found.memory_before = memory_of(job.server)
        loop = asyncio.get_running_loop()
        make: Callable[[Load], Client] = StreamClient if job.streams else Client
        clients: list[Client] = []
        try:
            for _ in range(job.connections):
                _, client = await loop.create_connection(lambda: make(self), "127.0.0.1", job.port)
                clients.append(client)
            used = time_of(job.server)
            begun, cpu = time.perf_counter(), time.process_time()
            for at, client in enumerate(clients):
                if job.spread:
                    await asyncio.sleep(begun + job.spread * at / len(clients) - time.perf_counter())
                client.begin()
            await self.done
            found.seconds = time.perf_counter() - begun
            found.busy = (time.process_time() - cpu) / found.seconds
            found.server_time = time_of(job.server) - used
        finally:
            for client in clients:
                client.transport.abort()
            await asyncio.gather(*(client.closed for client in clients))
        found.last = msgspec.Raw(self.last)
        found.delays.sort()
        return found


async def main() -> None:
    raise_file_limit()
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    gc.freeze()
    gc.disable()  # a pause of the client would count as one of the server
    sys.stdout.buffer.write(msgspec.json.encode(await Load(job).run()))


if __name__ == "__main__":
    asyncio.run(main())
