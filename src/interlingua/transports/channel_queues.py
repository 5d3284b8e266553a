"""Queues the incoming and the outgoing frames of a channel without a stream of its own. Both queues make a fast sender
wait."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator

log = logging.getLogger("interlingua.transports")

_HIGH, _LOW = 1024 * 1024, 256 * 1024  # bytes queued at which one side waits, and at which it goes on


class Queues:
    def __init__(self, name: str) -> None:
        self._name = name  # for messages
        self._in: list[bytes] = []
        self._in_bytes = 0
        self._news = asyncio.Event()
        self._in_room = asyncio.Event()
        self._in_room.set()
        self._out: deque[bytes] = deque()
        self._out_bytes = 0
        self._more = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._gone = False
        self.reason = ""  # why the peer is gone, where that is known

    # -- for those above ----------------------------------------------------------------------------------

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

    # -- for those below ----------------------------------------------------------------------------------

    def _take(self, frame: bytes) -> None:
        """Queues a frame that came. The code that reads frames waits for `_in_room` before it reads on."""
        self._in.append(frame)
        self._in_bytes += len(frame)
        if self._in_bytes > _HIGH:
            self._in_room.clear()
        self._news.set()

    async def _outgoing(self) -> AsyncIterator[bytes]:
        """Yields the frames to send, in order. A frame counts as sent when the next one is requested."""
        while not self._gone:
            await self._more.wait()
            self._more.clear()
            while self._out and not self._gone:
                frame = self._out.popleft()
                yield frame
                self._out_bytes -= len(frame)
                if self._out_bytes <= _LOW:
                    self._room.set()
            if not self._out:
                self._empty.set()

    def _lost(self, why: str = "") -> None:
        if why and not self._gone:
            log.warning("the peer at %s is gone: %s", self._name, why)
            self.reason = why
        self._gone = True
        self._out.clear()
        self._out_bytes = 0
        for event in (self._news, self._in_room, self._room, self._empty, self._more):
            event.set()
