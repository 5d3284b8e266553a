"""Streams of the protocol as they come over the wire: their bytes, their events, and the updates in these."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx2
import msgspec

from interlingua.transports.http import sse
from interlingua.transports.raw_client import Answer, Stream

from ..base import Broken, Gone, expect, member, shown

_LINE = re.compile(rb"\r\n|\n|\r")


class Block(msgspec.Struct):
    """The lines of one event."""

    id: str | None = None
    event: str | None = None
    data: list[str] | None = None


class Streamed(msgspec.Struct):
    """The bytes that came of a stream, and how it ended."""

    what: str
    status: int
    media_type: str
    received: bytes = b""
    closed: bool = False
    body: bytes = b""  # the body of an answer that is no stream
    trouble: str = ""  # why it was not read to its end

    def lines(self) -> list[str]:
        """The lines that have ended."""
        lines = _LINE.split(self.received.removeprefix(b"\xef\xbb\xbf"))[:-1]
        return [line.decode(errors="replace") for line in lines]

    def events(self) -> list[Block]:
        """Returns the events: blocks that have data and an empty line after it."""
        found = [Block()]
        for line in self.lines():
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            last = found[-1]
            if not line:
                found.append(Block())
            elif name == "data":
                last.data = [*(last.data or []), value]
            elif name == "id":
                last.id = value
            elif name == "event":
                last.event = value
        return [block for block in found[:-1] if block.data is not None]

    def comments(self) -> tuple[int, int]:
        """Counts the comments, and the parts between empty lines that hold nothing but comments."""
        total = alone = 0
        part: list[str] = []
        for line in self.lines():
            if line:
                part.append(line)
                total += line.startswith(":")
            else:
                alone += bool(part) and all(line.startswith(":") for line in part)
                part = []
        return total, alone

    def updates(self) -> list[dict[str, Any]]:
        """The data of every event; without the run object that the text shows before the first one."""
        self.expect_stream()
        found = [update_of("\n".join(block.data or []), self.what) for block in self.events()]
        if found and "type" not in found[0] and "run_id" in found[0] and "status" in found[0]:
            return found[1:]
        return found

    def of_type(self, *types: str) -> list[dict[str, Any]]:
        return [update for update in self.updates() if update.get("type") in types]

    def expect_stream(self) -> None:
        told = f"{self.what} is answered {self.status} with {self.media_type or 'no content type'}"
        text = (self.body or self.received).decode(errors="replace")
        expect(self.status == 200 and self.media_type == "text/event-stream", f"{told}: {shown(text)}")

    def run_id(self) -> str:
        """The run that the stream is of."""
        self.expect_stream()
        for block in self.events():
            told = update_of("\n".join(block.data or []), self.what).get("run_id")
            if isinstance(told, str):
                return told
        raise Broken(f"no event of {self.what} has a run_id")


def update_of(text: str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise Broken(f"the data of an event of {what} is no JSON: {shown(text)}") from None
    return member(value, "", dict, f"the data of an event of {what}")


class Flow:
    """A stream that goes on. Looking whether something comes takes nothing from it."""

    def __init__(self, stream: Stream, what: str) -> None:
        self._stream = stream
        self._next: asyncio.Future[sse.Received | None] | None = None
        self.seen = Streamed(what, stream.status, stream.media_type)

    @property
    def is_stream(self) -> bool:
        return self.seen.status == 200 and self.seen.media_type == "text/event-stream"

    async def whole(self) -> Answer:
        return await self._stream.body()

    async def next(self, within: float | None) -> dict[str, Any] | None:
        """The next update; None where none comes in that time, or any more."""
        event = await self._event(within)
        return None if event is None else update_of(event.data, self.seen.what)

    async def _event(self, within: float | None) -> sse.Received | None:
        if self._next is None:
            self._next = asyncio.ensure_future(self._stream.next())
        done, _ = await asyncio.wait({self._next}, timeout=within)
        if not done:
            return None
        ended, self._next = self._next, None
        event = ended.result()
        self.seen.closed = event is None
        return event

    async def to_the_end(self) -> None:
        try:
            while not self.seen.closed:
                await self._event(None)
        except (Gone, Broken, httpx2.HTTPError) as error:
            self.seen.trouble = str(error)

    async def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)
        self.seen.received = bytes(self._stream.received)
