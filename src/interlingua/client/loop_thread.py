"""Runs coroutines in the event loop of a thread, for callers that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from ..model.errors import InvalidRequest

T = TypeVar("T")
R = TypeVar("R")


class LoopThread:
    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        _refuse_inside_a_loop()
        loop, up = asyncio.new_event_loop(), threading.Event()

        def run() -> None:
            loop.call_soon(up.set)
            loop.run_forever()
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

        self._thread = threading.Thread(target=run, name="interlingua client", daemon=True)
        self._thread.start()
        up.wait()
        self._loop = loop

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop = None

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine and returns its result. Ctrl-C cancels it."""
        if self._loop is None:
            work.close()
            raise InvalidRequest("the client is not open; use `with il.SyncClient(...) as client`")
        try:
            _refuse_inside_a_loop()
        except InvalidRequest:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncIterator[T], wrap: Callable[[T], R]) -> Iterator[R]:
        """Yields what an asynchronous iterator yields."""
        try:
            while True:
                try:
                    yield wrap(self.call(_next(items)))
                except _End:
                    return
        finally:
            if self._loop is not None:
                self.call(_close(items))


class _End(Exception):
    pass


async def _next(items: AsyncIterator[T]) -> T:
    try:
        return await anext(items)
    except StopAsyncIteration:
        raise _End from None


async def _close(items: AsyncIterator[Any]) -> None:
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()


def _refuse_inside_a_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InvalidRequest("SyncClient blocks; in a coroutine use `async with il.Client(...) as client`")
