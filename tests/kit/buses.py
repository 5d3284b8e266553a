"""What tests of buses need: waiting for something to become true, and somebody who is served by a bus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from interlingua.bus.port import Presence


class Heard:
    """What came, in its order, and a way to wait for it."""

    def __init__(self) -> None:
        self.items: list[object] = []
        self._changed = asyncio.Event()

    def __call__(self, item: object = None) -> None:
        self.items.append(item)
        self._changed.set()

    def about(self, item: object) -> Callable[[], None]:
        return lambda: self(item)

    async def until(self, done: Callable[[], bool], timeout: float = 10.0) -> None:
        async with asyncio.timeout(timeout):
            while not done():
                self._changed.clear()
                await self._changed.wait()

    async def count(self, wanted: int, timeout: float = 10.0) -> None:
        await self.until(lambda: len(self.items) >= wanted, timeout)


class FakeListener:
    """Stands for a worker."""

    __test__ = False

    def __init__(self, worker: str, queues: list[str] | None = None) -> None:
        self.worker = worker
        self.queues = queues or []
        self.heard = Heard()
        self.accepts = True
        self.offers = Heard()
        self.free = asyncio.Event()
        self.free.set()

    def presence(self) -> Presence:
        return Presence(self.worker, "host", 1, self.queues)

    def missed(self) -> None:
        self.heard(("missed",))

    def inbox_changed(self, run: str) -> None:
        self.heard(("told", run))

    def reader_joined(self, run: str) -> None:
        self.heard(("watched", run))

    async def wait_for_slot(self, queue: str) -> None:
        await self.free.wait()

    async def offered(self, queue: str, run: str, *, again: bool) -> bool:
        self.offers((queue, run))
        return self.accepts
