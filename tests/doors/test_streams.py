"""The one answer that is a stream of events: what it holds of a reader that does not read, and what is left of one that
goes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from interlingua.doors import streams
from interlingua.doors.streams import PiecesStream, Streams, in_pieces
from interlingua.transports.http.sse import KEEP_ALIVE

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


# -- the clock of a stream ------------------------------------------------------------------------------------


def bodies(wire: Wire) -> list[bytes]:
    return [message["body"] for message in wire.sent if message["type"] == "http.response.body"]


async def _quiet(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
    await asyncio.Event().wait()


async def test_a_silent_stream_gets_a_comment_again_and_again() -> None:
    wire = Wire(3)
    streaming = asyncio.ensure_future(PiecesStream(_quiet(b"a"), keep_alive=0.01)({}, wire.receive, wire.send))
    async with asyncio.timeout(WAIT):
        await wire.full.wait()
        wire.gone.set()
        await streaming
    assert bodies(wire) == [b"a", *[KEEP_ALIVE] * 3]


class Slow(Wire):
    """A connection that takes some turns of the loop for each slice."""

    async def send(self, message: Any) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        await super().send(message)


async def test_no_comment_comes_into_a_piece_that_is_being_taken() -> None:
    wire, large = Slow(10), b"x" * 500_000
    streaming = asyncio.ensure_future(PiecesStream(_quiet(large), keep_alive=0.0)({}, wire.receive, wire.send))
    async with asyncio.timeout(WAIT):
        await wire.full.wait()
        wire.gone.set()
        await streaming
    sent = bodies(wire)
    first = sent.index(KEEP_ALIVE, 1)
    assert b"".join(sent[:first]).removeprefix(KEEP_ALIVE) == large
    assert set(sent[first:]) == {KEEP_ALIVE}


async def test_a_reader_that_takes_no_comment_is_given_up_too() -> None:
    wire = Wire(0)
    async with asyncio.timeout(WAIT):
        await PiecesStream(_quiet(), keep_alive=0.01, stall=0.05)({}, wire.receive, wire.send)
    assert bodies(wire) == [KEEP_ALIVE]


# -- the streams of a door ------------------------------------------------------------------------------------


def counted(streams_: Streams, caller: str | None, *pieces: bytes) -> PiecesStream:
    stream = PiecesStream(_quiet(*pieces))
    stream.counted = streams_.holding(stream, caller)
    return stream


async def test_a_door_that_stops_ends_its_streams_properly_unless_a_reader_is_behind() -> None:
    door, quick, slow = Streams(10), Wire(10), Wire(1)
    running = [
        asyncio.ensure_future(counted(door, "a", b"1")({}, quick.receive, quick.send)),
        asyncio.ensure_future(counted(door, "a", b"1", b"2")({}, slow.receive, slow.send)),
    ]
    async with asyncio.timeout(WAIT):
        await slow.full.wait()
        door.close()
        await asyncio.gather(*running)
    assert (bodies(quick), quick.sent[-1].get("more_body")) == ([b"1", b""], None)
    assert bodies(slow) == [b"1", b"2"]  # whose end would never be taken
    assert door.closed


async def test_a_caller_has_a_share_of_the_streams_of_a_door() -> None:
    door, wire = Streams(3, tenths=7), Wire(10)
    assert (door.is_full, door.has_share("a")) == (False, False)
    running = [asyncio.ensure_future(counted(door, caller)({}, wire.receive, wire.send)) for caller in ("a", "a", None)]
    await asyncio.sleep(0)
    assert (door.is_full, door.has_share("a"), door.has_share("b"), door.has_share(None)) == (True, True, False, False)
    assert door.why_full("b") == "3 streams are open already"
    wire.gone.set()
    await asyncio.gather(*running)
    assert (door.is_full, door.has_share("a"), door.why_full("a")) == (False, False, "")
    door.close()
    assert door.why_full("a") == "the server stops"
