"""The one answer that is a stream of events: what it holds of a reader that does not read, and what is left of one that
goes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from interlingua.doors import streams
from interlingua.doors.streams import PiecesStream, in_pieces

WAIT = 10.0


class Wire:
    """A connection that takes so many slices, and then none."""

    def __init__(self, takes: int) -> None:
        self.sent: list[dict[str, Any]] = []
        self._takes = takes
        self.full = asyncio.Event()
        self.gone = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        if message.get("body"):
            if not self._takes:
                self.full.set()
                await asyncio.Event().wait()
            self._takes -= 1


async def _pieces(ended: asyncio.Event, *pieces: bytes) -> AsyncIterator[bytes]:
    try:
        for piece in pieces:
            yield piece
    finally:
        ended.set()


async def test_a_piece_is_written_in_slices_and_the_stream_ends_with_it() -> None:
    wire, ended = Wire(1000), asyncio.Event()
    await PiecesStream(_pieces(ended, b"x" * 1_000_000, b"end"))({}, wire.receive, wire.send)
    bodies = [message["body"] for message in wire.sent[1:]]
    assert max(map(len, bodies)) == 64 * 1024
    assert b"".join(bodies) == b"x" * 1_000_000 + b"end"
    assert (bodies[-1], wire.sent[-1].get("more_body")) == (b"", None)
    assert ended.is_set()


async def test_a_reader_that_takes_nothing_is_given_up_and_its_source_is_closed() -> None:
    wire, ended = Wire(1), asyncio.Event()
    async with asyncio.timeout(WAIT):
        await PiecesStream(_pieces(ended, b"a", b"b"), stall=0.05)({}, wire.receive, wire.send)
    assert ended.is_set()
    assert wire.sent[-1]["body"] == b"b"


async def test_a_reader_that_goes_ends_its_source_at_once() -> None:
    wire, ended = Wire(1), asyncio.Event()
    streaming = asyncio.ensure_future(PiecesStream(_pieces(ended, b"a", b"b"))({}, wire.receive, wire.send))
    async with asyncio.timeout(WAIT):
        await wire.full.wait()
        wire.gone.set()
        await streaming
    assert ended.is_set()


async def test_what_a_source_raises_is_raised() -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"a"
        raise ValueError("broken")

    wire = Wire(10)
    with pytest.raises(ValueError, match="broken"):
        await PiecesStream(broken())({}, wire.receive, wire.send)


async def test_a_large_piece_is_held_once_for_all_who_get_it_and_goes_with_them() -> None:
    async def fresh() -> AsyncIterator[bytes]:
        for events in in_pieces([b"x" * 1_000_000], lambda event: event + b"!"):
            yield events.pop()

    wires = [Wire(1) for _ in range(20)]
    answers = [asyncio.ensure_future(PiecesStream(fresh())({}, wire.receive, wire.send)) for wire in wires]
    async with asyncio.timeout(WAIT):
        for wire in wires:
            await wire.full.wait()
        gc.collect()
        assert len(streams._large) == 1
        assert sum(type(found) is streams._Large for found in gc.get_objects()) <= 1
        for wire in wires:
            wire.gone.set()
        await asyncio.gather(*answers)
    assert not streams._large


def test_small_events_are_written_together_and_large_ones_alone() -> None:
    events = [b"a", b"b", b"x" * 100_000, b"c"]
    assert [piece.pop() for piece in in_pieces(events, bytes)] == [b"ab" + b"x" * 100_000, b"c"]
    assert not events
