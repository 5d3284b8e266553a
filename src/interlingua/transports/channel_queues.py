"""Queues the frames of a channel: those to send, and those that came. Both queues make a fast sender wait."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator

log = logging.getLogger("interlingua.transports")

_HIGH, _LOW = 1024 * 1024, 256 * 1024  # bytes queued at which one side waits, and at which it goes on


class SendQueue:
    """The frames that a channel has to send."""

    turns = 0
    """Turns of the loop in which frames gather before the first of them is sent. Frames of one moment then go out
    together: each frame alone would wake the peer, which usually waits for the last one."""

    def __init__(self) -> None:
        self._out: deque[bytes] = deque()
        self._out_bytes = 0
        self._sending = 0  # bytes of the frame that is being sent
        self._more = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._gone = False

    def send(self, frame: bytes) -> None:
        if self._gone:
            return
        self._out.append(frame)
        self._out_bytes += len(frame)
        self._empty.clear()
        self._more.set()
        if self._out_bytes > _HIGH:
            self._room.clear()

    async def drain(self) -> None:
        await self._room.wait()

    async def written(self) -> bool:
        """Waits until everything queued was taken. Returns False if the peer went before."""
        await self._empty.wait()
        return not self._gone

    async def _next(self) -> bytes | None:
        """Returns the next frame to send. The one before counts as sent. None: the peer has gone."""
        self._out_bytes -= self._sending
        self._sending = 0
        if self._out_bytes <= _LOW:
            self._room.set()
        if not self._out:
            if not self._gone:
                self._empty.set()
            await self._more.wait()
            for _ in range(self.turns):
                queued = len(self._out)
                await asyncio.sleep(0)
                if len(self._out) == queued:
                    break
        if self._gone:
            return None
        frame = self._out.popleft()
        self._sending = len(frame)
        if not self._out:
            self._more.clear()
        return frame

    async def _outgoing(self) -> AsyncIterator[bytes]:
        """Yields the frames to send, in order. A frame counts as sent when the next one is requested."""
        while (frame := await self._next()) is not None:
            yield frame

    def _lost(self) -> None:
        """Ends all waiting when the peer has gone: nothing empties the queue any more."""
        self._gone = True
        self._out.clear()
        self._out_bytes = self._sending = 0
        for event in (self._room, self._empty, self._more):
            event.set()


class Queues(SendQueue):
    """The frames in both directions, for a channel without a stream of its own."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name  # for messages
        self._in: list[bytes] = []
        self._in_bytes = 0
        self._news = asyncio.Event()
        self._in_room = asyncio.Event()
        self._in_room.set()
        self.reason = ""  # why the peer is gone, where that is known

    async def receive(self) -> list[bytes]:
        while not self._in:
            if self._gone:
                return []
            self._news.clear()
            await self._news.wait()
        frames, self._in = self._in, []
        self._in_bytes = 0
        self._in_room.set()
        return frames

    def _take(self, frame: bytes) -> None:
        """Queues a frame that came. The code that reads frames waits for `_in_room` before it reads on."""
        self._in.append(frame)
        self._in_bytes += len(frame)
        if self._in_bytes > _HIGH:
            self._in_room.clear()
        self._news.set()

    def _lost(self, why: str = "") -> None:
        if why and not self._gone:
            log.warning("the peer at %s is gone: %s", self._name, why)
            self.reason = why
        super()._lost()
        self._news.set()
        self._in_room.set()
