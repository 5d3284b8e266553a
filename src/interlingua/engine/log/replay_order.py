"""The order of replay: branches of a handler receive recorded results in the order in which these first came.

Otherwise a handler that takes the first of two answers would find both at once when it is replayed.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import Iterator

AFTER_ALL = 2**63
"""The turn of what came after the end of the history."""

_CALM = 12  # turns of the event loop without another request: by then, a branch that got something has asked for more


class Turns:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._calm = 0
        self._looking = False
        self._held = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    async def wait(self, seq: int) -> None:
        """Return when all who wait for something that came earlier have got it."""
        future: asyncio.Future[None] = self._loop.create_future()
        heapq.heappush(self._waiting, (seq, next(self._numbers), future))
        self._begin_to_look()
        await future

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep the turn, also while the store is read."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            self._begin_to_look()

    def _begin_to_look(self) -> None:
        self._calm = 0
        if not self._looking:
            self._looking = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        while self._waiting and self._waiting[0][2].done():  # its task was cancelled
            heapq.heappop(self._waiting)
        if not self._waiting or self._held:
            self._looking = False
            return
        self._calm += 1
        if self._calm > _CALM:
            self._calm = 0
            heapq.heappop(self._waiting)[2].set_result(None)
        self._loop.call_soon(self._look)
