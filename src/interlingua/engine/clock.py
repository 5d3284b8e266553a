"""Alarms by the wall clock. The clock of an event loop counts seconds, and does not notice that the time was set."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from .ids import now

_JUMP = 100_000  # microseconds by which the two clocks drift apart before all alarms are set anew


class Alarm:
    """Calls a function once, when the wall clock has reached a moment."""

    __slots__ = ("_clock", "_handle", "_moment", "_ring")

    def __init__(self, clock: WallClock, moment: int, ring: Callable[[], object]) -> None:
        self._clock = clock
        self._moment = moment
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None

    def arm(self) -> None:
        self._stop()
        left = max(0, self._moment - now()) / 1e6
        self._handle = asyncio.get_running_loop().call_later(left, self._look)

    def cancel(self) -> None:
        self._stop()
        self._clock.forget(self)

    def _look(self) -> None:
        self._handle = None
        if now() < self._moment:  # the clock was set back meanwhile
            self.arm()
        else:
            self._clock.forget(self)
            self._ring()

    def _stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class WallClock:
    """The alarms of a worker. `look` notices that the time was set, and is called in each sweep."""

    def __init__(self) -> None:
        self._alarms: set[Alarm] = set()
        self._ahead = _ahead()

    def at(self, moment: int, ring: Callable[[], object]) -> Alarm:
        """Call `ring` at a moment, or in the next turn of the loop where that has passed."""
        alarm = Alarm(self, moment, ring)
        self._alarms.add(alarm)
        alarm.arm()
        return alarm

    def forget(self, alarm: Alarm) -> None:
        self._alarms.discard(alarm)

    def look(self) -> None:
        ahead = _ahead()
        if abs(ahead - self._ahead) > _JUMP:
            self._ahead = ahead
            for alarm in list(self._alarms):
                alarm.arm()

    @contextlib.asynccontextmanager
    async def until(self, moment: int) -> AsyncIterator[None]:
        """As `asyncio.timeout_at`, by the wall clock."""
        async with asyncio.timeout(None) as limit:
            loop = asyncio.get_running_loop()
            alarm = self.at(moment, lambda: limit.reschedule(loop.time()))
            try:
                yield
            finally:
                alarm.cancel()


def _ahead() -> int:
    """How far the wall clock is ahead of the clock of the loop."""
    return now() - int(asyncio.get_running_loop().time() * 1e6)
