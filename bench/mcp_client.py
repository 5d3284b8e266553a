"""A client of agents over MCP that speaks in bytes: over the pipes of a process that it starts, here, and over HTTP, in
`mcp_posts`. It is the same for every server that is measured.

While the clock runs it looks for nothing but the ends of answers. What was said is parsed and compared afterwards: each
request has one answer, all deltas of a run came before it, and they join to its output.
"""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from .load import memory_of, time_of

PIECE = 1 << 20
HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"
RESULT, ERROR = b'"result":', b'"error":'  # one of them stands in every answer, and nowhere else in what is said here
FIRST = 1_000_000  # ids all have as many digits: a request is two halves that are made once, and an id between them
GREETING = {
    "protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"},
}  # fmt: skip
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


class Asks(msgspec.Struct):
    """What is asked again and again, and what each answer must say."""

    agent: str
    input: dict[str, Any]
    says: str  # the text of the output
    tokens: int = 0  # that the deltas must bring; 0 where none are wanted

    def halves(self, meta: dict[str, Any] | None = None) -> tuple[bytes, bytes]:
        """A request in two halves, between which its id belongs; its id is its progress token, too."""
        meta = {**(meta or {}), **({"progressToken": "@@"} if self.tokens else {})}
        params = {"name": self.agent, "input": self.input, **({"_meta": meta} if meta else {})}
        body = msgspec.json.encode({"jsonrpc": "2.0", "method": "agents/run", "params": params, "id": 0})
        return body[:-2], b"}"

    def request(self, halves: tuple[bytes, bytes], id_: int) -> bytes:
        head, tail = halves
        told = b"%d" % id_
        return (head.replace(b'"@@"', told) if self.tokens else head) + told + tail


class Found(msgspec.Struct):
    runs: int
    tokens: int
    messages: int  # that carried them; fewer than tokens, where a server joins what waits
    seconds: float
    busy: float  # share of the time in which this client computed
    server_time: float  # seconds that the server's process computed


class Said(msgspec.Struct):
    """One message of a server, of whichever kind."""

    id: int | None = None
    method: str = ""
    params: dict[str, Any] = {}
    result: dict[str, Any] | None = None
    error: Any = None


said = msgspec.json.Decoder(Said)


def echo() -> Asks:
    text = "What is said here comes back."
    return Asks("echo", {"text": text}, text)


def counting(tokens: int) -> Asks:
    return Asks("counter", {"count": tokens}, "".join(f"token{index} " for index in range(tokens)), tokens)


def check(lines: Iterable[bytes], ids: Iterable[int], asks: Asks) -> int:
    """See that every request was answered, once and rightly. Returns the number of messages that carried deltas."""
    joined: dict[int, list[str]] = {id_: [] for id_ in ids}
    messages = 0
    for line in lines:
        message = said.decode(line)
        if message.method == "notifications/agents/run/progress":
            text = message.params["delta"]["text"]
            if message.params["delta"] != {"text": text}:
                raise RuntimeError(f"a delta has more than text: {line!r}")
            deltas = joined.get(message.params["progressToken"])
            if deltas is None:
                raise RuntimeError(f"a delta came for no request, or after its answer: {line!r}")
            deltas.append(text)
            messages += 1
        elif message.method:
            raise RuntimeError(f"the server said {line!r}")
        else:
            if message.id not in joined:
                raise RuntimeError(f"an answer to no request, or a second one: {line!r}")
            told = "".join(joined.pop(message.id))
            if message.result is None or message.result.get("output") != {"text": asks.says}:
                raise RuntimeError(f"an answer is {line[:2000]!r}")
            if asks.tokens and told != asks.says:
                raise RuntimeError(f"deltas join to {told[:200]!r}…, {len(told)} characters of {len(asks.says)}")
            if told and not asks.tokens:
                raise RuntimeError("deltas came that were not asked for")
    if joined:
        raise RuntimeError(f"{len(joined)} requests have no answer")
    return messages


def installed() -> dict[str, str]:
    """The environment of a program as users have it: with its modules compiled, if only by the first start."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Without the garbage collector, which would count as a pause of the server."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Client:
    """One server process, over its pipes. Blocking: one thread that waits costs least."""

    def __init__(self, command: list[str], log: Path) -> None:
        begun = time.perf_counter()
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0, env=installed()
            )
        self._log = log
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self._out = self.process.stdin.fileno(), self.process.stdout.fileno()
        self._next = FIRST
        try:
            self._write(msgspec.json.encode({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": GREETING}))
            self._write(b"\n")
            answer = b""
            while not answer.endswith(b"\n"):
                answer += self._read()
            self.start = time.perf_counter() - begun
            result = said.decode(answer).result
            if result is None or result["protocolVersion"] != HANDSHAKE:
                raise RuntimeError(f"initialize was answered with {answer!r}")
            self._write(msgspec.json.encode(INITIALIZED) + b"\n")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise RuntimeError(f"the server did not end when its input did; {self._errors()}") from None
        finally:
            self.process.stdout.close()

    def memory(self) -> int:
        return memory_of(self.process.pid)

    def _errors(self) -> str:
        return f"it wrote: {self._log.read_text(errors='replace')[-2000:] or 'nothing'}"

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._in, data) :]

    def _read(self) -> bytes:
        data = os.read(self._out, PIECE)
        if not data:
            raise RuntimeError(f"the server ended; {self._errors()}")
        return data

    def runs(self, asks: Asks, count: int, at_once: int) -> Found:
        """Ask so often, with so many requests open at once: each answer is followed by the next request."""
        first, last = self._next, self._next + count
        self._next = last
        halves = asks.halves()
        pieces: list[bytes] = []
        with undisturbed():
            used, begun, cpu = time_of(self.process.pid), time.perf_counter(), time.process_time()
            sent = first + min(at_once, count)
            for id_ in range(first, sent):
                self._write(asks.request(halves, id_) + b"\n")
            waiting, tail = count, b""
            while waiting:
                # The end of the last piece is looked at again, in case that an answer's mark was cut in two.
                pieces.append(piece := self._read())
                seen = tail + piece
                if ERROR in seen:
                    raise RuntimeError(f"the server said {seen[-2000:]!r}")
                ended = seen.count(RESULT)
                tail = b"" if seen.endswith(b"\n") else seen[max(seen.rfind(RESULT) + 1, len(seen) - len(RESULT)) :]
                waiting -= ended
                for _ in range(min(ended, last - sent)):
                    self._write(asks.request(halves, sent) + b"\n")
                    sent += 1
            while not pieces[-1].endswith(b"\n"):
                pieces.append(self._read())
            seconds, busy = time.perf_counter() - begun, time.process_time() - cpu
            used = time_of(self.process.pid) - used
        lines = b"".join(pieces).split(b"\n")[:-1]
        messages = check(lines, range(first, last), asks)
        return Found(count, count * asks.tokens, messages, seconds, busy / seconds, used)


@contextlib.contextmanager
def started(command: list[str], log: Path) -> Iterator[Client]:
    client = Client(command, log)
    try:
        yield client
    finally:
        client.close()
