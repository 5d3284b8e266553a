"""The worker's clock: the clock of its store, with alarms by the time of day.

A timer of an event loop counts seconds, and does not notice that the time of day was set.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from ..runtime.clock import Clock, Timer

_JUMP = 100_000  # microseconds by which time of day and seconds drift apart before all alarms are set anew


class Alarm:
    """Calls a function once, at a time of day."""

    __slots__ = ("_clock", "_moment", "_ring", "_timer")

    def __init__(self, clock: AlarmClock, moment: int, ring: Callable[[], object]) -> None:
        self._clock = clock
        self._moment = moment
        self._ring = ring
        self._timer: Timer | None = None

    def arm(self) -> None:
        self._stop()
        left = max(0, self._moment - self._clock.now()) / 1e6
        self._timer = self._clock.call_at(self._clock.monotonic() + left, self._look)

    def cancel(self) -> None:
        self._stop()
        self._clock.forget(self)

    def _look(self) -> None:
        self._timer = None
        if self._clock.now() < self._moment:  # the time was set back meanwhile
            self.arm()
        else:
            self._clock.forget(self)
            self._ring()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class AlarmClock:
    """Keeps the alarms of a worker. `look` notices that the time was set, and is called in each sweep."""

    def __init__(self, clock: Clock) -> None:
        self.now = clock.now
        self.monotonic = clock.monotonic
        self.call_at = clock.call_at
        self._alarms: set[Alarm] = set()
        self._ahead = self._drift()

    def at(self, moment: int, ring: Callable[[], object]) -> Alarm:
        """Call `ring` at a time of day, or in the next turn of the loop where that has passed."""
        alarm = Alarm(self, moment, ring)
        self._alarms.add(alarm)
        alarm.arm()
        return alarm

    def forget(self, alarm: Alarm) -> None:
        self._alarms.discard(alarm)

    def look(self) -> None:
        ahead = self._drift()
        if abs(ahead - self._ahead) > _JUMP:
            self._ahead = ahead
            for alarm in list(self._alarms):
                alarm.arm()

    @contextlib.asynccontextmanager
    async def until(self, moment: int) -> AsyncIterator[None]:
        """As `asyncio.timeout_at`, by the time of day."""
        async with asyncio.timeout(None) as limit:
            alarm = self.at(moment, lambda: limit.reschedule(0))
            try:
                yield
            finally:
                alarm.cancel()

    def _drift(self) -> int:
        """Returns by how many microseconds the time of day is ahead of `monotonic`."""
        return self.now() - int(self.monotonic() * 1e6)
