"""The send queue of a bus: bounded, filled by callers that never wait, emptied by one task."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Literal

import msgspec


class Item(msgspec.Struct, array_like=True, gc=False):
    action: Literal["publish", "subscribe", "unsubscribe"]
    subject: str
    payload: bytes = b""
    id: str | None = None  # the server drops later messages with the same id


class SendQueue:
    """Keeps the order: a process that subscribes and then asks for an answer receives it."""

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._items: deque[Item] = deque()
        self._once: set[str] = set()  # subjects with a hint in the queue: another one would add nothing
        self._bytes = 0
        self._ready = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Item, *, once: bool = False) -> bool:
        """Adds an item. False if the queue is full; subscriptions are always accepted, because callers rely on them."""
        if once:
            if item.subject in self._once:
                return True
            self._once.add(item.subject)
        if item.action == "publish":
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
        """Drops everything. Returns the number of dropped messages."""
        dropped = sum(item.action == "publish" for item in self._items)
        self._items.clear()
        self._once.clear()
        self._bytes = 0
        self._empty.set()
        return dropped
