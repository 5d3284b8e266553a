"""What a bus still has to say: a queue with bounds, filled by callers that never wait and emptied by one task."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Literal

import msgspec


class Item(msgspec.Struct, array_like=True, gc=False):
    what: Literal["say", "listen", "ignore"]
    subject: str
    payload: bytes = b""
    id: str | None = None  # the server forgets what comes again with the same


class Outgoing:
    """Order is kept: whoever listens to a subject and then asks for an answer there hears it."""

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._items: deque[Item] = deque()
        self._once: set[str] = set()  # subjects whose hint is in the queue: one more would say nothing new
        self._bytes = 0
        self._ready = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Item, *, once: bool = False) -> bool:
        """False where there is no room. What is only about listening always has room: others count on it."""
        if once:
            if item.subject in self._once:
                return True
            self._once.add(item.subject)
        if item.what == "say":
            if len(self._items) >= self._max_items or self._bytes + len(item.payload) > self._max_bytes:
                self._once.discard(item.subject)
                return False
            self._bytes += len(item.payload)
        self._items.append(item)
        self._ready.set()
        self._empty.clear()
        return True

    async def get(self) -> Item:
        while not self._items:
            self._empty.set()
            self._ready.clear()
            await self._ready.wait()
        item = self._items.popleft()
        self._bytes -= len(item.payload)
        self._once.discard(item.subject)
        return item

    async def emptied(self) -> None:
        await self._empty.wait()

    def clear(self) -> int:
        """Forget everything. Returns how much of it would have been said."""
        said = sum(item.what == "say" for item in self._items)
        self._items.clear()
        self._once.clear()
        self._bytes = 0
        self._empty.set()
        return said
