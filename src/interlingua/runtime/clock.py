"""The clock: everything in the engine, the store and the bus that reads time, or sets a timer, does it here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> object: ...

    def when(self) -> float: ...


class Clock(Protocol):
    """May be read in any thread. Timers belong to the event loop that sets them."""

    def now(self) -> int:
        """The time of day, in microseconds since 1970, UTC. It jumps when somebody sets it."""

    def monotonic(self) -> float:
        """Seconds that only grow, for measuring how long something takes."""

    def call_at(self, moment: float, callback: Callable[..., object], *args: object) -> Timer:
        """Call a function on the running event loop at a moment of `monotonic`."""


class SystemClock:
    def now(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()

    def call_at(self, moment: float, callback: Callable[..., object], *args: object) -> Timer:
        loop = asyncio.get_running_loop()
        return loop.call_at(loop.time() + moment - time.monotonic(), callback, *args)


SYSTEM_CLOCK = SystemClock()


async def sleep(clock: Clock, seconds: float) -> None:
    """Waits, as long as the clock says."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = clock.call_at(clock.monotonic() + seconds, _wake, future)
    try:
        await future
    finally:
        timer.cancel()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
