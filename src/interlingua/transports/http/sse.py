"""Writes server-sent events so that every published reader understands them.

Data is one line of ASCII JSON: readers that split on any Unicode line break would cut it otherwise. Lines end with LF.
A keep-alive is a comment with a single newline: an empty line after it would be an empty event to some readers
(agntcy-acp 1.5.2 raises on one).
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

import msgspec

from ..json_text import Unreadable

_NOT_ASCII = re.compile("[^\x00-\x7f]+")
_BOM = b"\xef\xbb\xbf"

KEEP_ALIVE = b": keep-alive\n"
NO_DATA = b"data:\n\n"
"""An event without data: readers of today take its id and nothing else."""


def encode(data: Any, *, id: str | None = None, event: str | None = None) -> bytes:  # noqa: A002 - the field's name
    """Writes an event whose data is a value, as JSON."""
    return event_of(msgspec.json.encode(data), id=id, event=event)


def event_of(body: bytes, *, id: str | None = None, event: str | None = None) -> bytes:  # noqa: A002
    """Writes an event whose data is JSON in one line, as a JSON encoder writes it."""
    if not body.isascii():
        body = _NOT_ASCII.sub(_escaped, body.decode()).encode()
    head = b"" if id is None else id_line(id)
    if event is not None:
        head += b"event: %s\n" % event.encode()
    return b"%sdata: %s\n\n" % (head, body)


def id_line(id: str) -> bytes:  # noqa: A002
    """Writes the line that tells a reader where it is, before it gets an event."""
    return b"id: %s\n" % id.encode()


def _escaped(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]


class Received(msgspec.Struct):
    data: str
    id: str | None = None
    event: str | None = None
    retry: int | None = None


class Reader:
    """The receiving side, sans I/O: bytes in, events out, by the WHATWG rules."""

    def __init__(self, limit: int = 64 * 1024 * 1024) -> None:  # as of a line
        self._partial = bytearray()  # of a line that has not ended; grows in place, or long lines would be quadratic
        self._limit = limit
        self._cr = False  # the last piece ended with a CR, which may be half of a CRLF
        self._data: list[str] = []
        self._size = 0  # bytes of the event that has not ended
        self._event: str | None = None
        self.last_id: str | None = None
        self.retry: int | None = None
        self._begun = False

    def feed(self, chunk: bytes) -> list[Received]:
        if not self._begun:
            chunk = bytes(self._partial) + chunk
            self._partial.clear()
            if _BOM.startswith(chunk) and chunk != _BOM:
                self._partial += chunk
                return []
            self._begun = True
            chunk = chunk.removeprefix(_BOM)
        if self._cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._cr = False
        if b"\r" in chunk:
            self._cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = chunk.split(b"\n")
        rest = lines.pop()
        out: list[Received] = []
        if lines:
            if self._partial:
                lines[0] = bytes(self._partial) + lines[0]
                self._partial.clear()
            for line in lines:
                received = self._line(line)
                if received is not None:
                    out.append(received)
        self._partial += rest
        if self._size + len(self._partial) > self._limit:
            raise Unreadable(f"an event of the stream is longer than {self._limit} bytes")
        return out

    def _line(self, raw: bytes) -> Received | None:
        if not raw:
            data, event = self._data, self._event
            self._data, self._event, self._size = [], None, 0
            return Received("\n".join(data), self.last_id, event, self.retry) if data else None
        if raw.startswith(b":"):
            return None
        self._size += len(raw)
        field, _, value = raw.decode("utf-8", "replace").partition(":")
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


async def read(chunks: AsyncIterable[bytes]) -> AsyncIterator[Received]:
    reader = Reader()
    async for chunk in chunks:
        for received in reader.feed(chunk):
            yield received
