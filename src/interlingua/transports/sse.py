"""Server-sent events, written so that every published reader understands them.

Data is one line of ASCII JSON: readers that split on any Unicode line break would cut it otherwise. Lines end with LF.
A keep-alive is a comment with a single newline: an empty line after it would be an empty event to some readers
(agntcy-acp 1.5.2 raises on one).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

import msgspec

KEEP_ALIVE = b": keep-alive\n"


def encode(data: Any, *, id: str | None = None, event: str | None = None) -> bytes:  # noqa: A002 - the field's name
    body = msgspec.json.encode(data)
    if not body.isascii():  # this one escapes, and takes ten times as long
        body = json.dumps(data, separators=(",", ":")).encode()
    head = "" if id is None else f"id: {id}\n"
    if event is not None:
        head += f"event: {event}\n"
    return b"%sdata: %s\n\n" % (head.encode(), body)


class Received(msgspec.Struct):
    data: str
    id: str | None = None
    event: str | None = None
    retry: int | None = None


class Reader:
    """The receiving side, sans I/O: bytes in, events out, by the WHATWG rules."""

    def __init__(self, limit: int = 16 * 1024 * 1024) -> None:
        self._buffer = b""
        self._limit = limit
        self._data: list[str] = []
        self._event: str | None = None
        self.last_id: str | None = None
        self.retry: int | None = None
        self._begun = False

    def feed(self, chunk: bytes) -> list[Received]:
        self._buffer += chunk
        if not self._begun and len(self._buffer) >= 3:
            self._begun = True
            self._buffer = self._buffer.removeprefix(b"\xef\xbb\xbf")
        out: list[Received] = []
        while True:
            end = _line_end(self._buffer)
            if end is None:
                break
            line, self._buffer = self._buffer[: end[0]], self._buffer[end[1] :]
            received = self._line(line.decode("utf-8", "replace"))
            if received is not None:
                out.append(received)
        if len(self._buffer) > self._limit:
            raise ValueError(f"a line of an event stream is longer than {self._limit} bytes")
        return out

    def _line(self, line: str) -> Received | None:
        if not line:
            data, event = self._data, self._event
            self._data, self._event = [], None
            return Received("\n".join(data), self.last_id, event, self.retry) if data else None
        if line.startswith(":"):
            return None
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._event = value
        elif field == "id" and "\0" not in value:
            self.last_id = value
        elif field == "retry" and value.isdigit():
            self.retry = int(value)
        return None


def _line_end(buffer: bytes) -> tuple[int, int] | None:
    """Where the first line ends, and where the next begins. A CR at the very end may be half of a CRLF: wait."""
    lf, cr = buffer.find(b"\n"), buffer.find(b"\r")
    if cr != -1 and (lf == -1 or cr < lf):
        if cr + 1 == len(buffer):
            return None
        return cr, cr + 2 if buffer[cr + 1 : cr + 2] == b"\n" else cr + 1
    return None if lf == -1 else (lf, lf + 1)


async def read(chunks: AsyncIterable[bytes]) -> AsyncIterator[Received]:
    reader = Reader()
    async for chunk in chunks:
        for received in reader.feed(chunk):
            yield received
