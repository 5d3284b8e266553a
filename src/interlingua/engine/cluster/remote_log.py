"""Remote logs: the newest events of runs that are in other processes, for their readers in this one.

Nothing here reads the store: a reader that finds nothing here, or a gap, looks there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from ...bus.port import CommittedEvents
from ...model.events import Event, RunCreated, body_decoder
from ...runtime.clock import Clock
from ...store.rows import EventRow, RunRow
from ..log.recent_events import RecentEvents
from ..observe import tracing
from ..observe.run_metrics import RunLabels, RunMetrics

_KEEP_BYTES = 2 * 1024 * 1024

_rows_in = msgspec.msgpack.Decoder(list[EventRow])


class RemoteLog:
    """The newest events of a run that is elsewhere, as its owner published them, without gaps.

    All of them are in the store, too: an owner publishes only what it has committed.
    """

    def __init__(
        self, run: str, about: RunLabels, clock: Clock, sweep_every: float, closed: Callable[[RemoteLog], None]
    ) -> None:
        self._clock = clock
        self.run = run
        self.about = about
        self.lag = tracing.Lag(clock.now()) if tracing.enabled() else None
        self.looks = 0  # raised when readers should look in the store
        self.hinted = 0  # the value of `looks` when the owner asked for the last one
        self.readers = 0
        self.submitted: tuple[RunRow, RunCreated] | None = None  # its row and first event, where it was submitted here
        self.held = False  # kept open for a reader that will come, which is counted already
        self.end: Callable[[], None] = lambda: None
        self._recent = RecentEvents(_KEEP_BYTES)
        self._waiters: set[asyncio.Future[None]] = set()
        self._sweep_every = sweep_every
        self._closed = closed
        self._timer = clock.call_at(clock.monotonic() + sweep_every, self._sweep)

    def receive(self, news: CommittedEvents) -> None:
        known = self._recent.last.seq if self._recent.last is not None else 0
        if news.rows:
            if news.last > known:
                self._extend(_rows_in.decode(news.rows), known)
                self.wake()
        elif news.last < 0 or news.last > known:
            self.looks += 1
            self.hinted = self.looks
            self.wake()

    def _extend(self, rows: list[EventRow], known: int) -> None:
        if rows[0].seq > known + 1:
            self._recent.clear()  # something is missing before these: who has not read it finds it in the store
        for row in rows:
            if row.seq > known and row.body is not None:
                body = body_decoder.decode(row.body)
                self._recent.add(Event(row.run, row.seq, row.time, row.hash, body, row.seq, len(row.body)))

    def begin(self, first: Event) -> None:
        """Start with the event that the run was submitted with."""
        self._recent.add(first)

    @property
    def last(self) -> Event | None:
        """The newest event that was published."""
        return self._recent.last

    def since(self, seq: int) -> list[Event] | None:
        """The events after `seq`; None where some of those before them were not published."""
        return self._recent.since(seq) if self._recent.last is not None else []

    def changed(self) -> asyncio.Future[None]:
        """Resolves at new events, or when it is time to read the store."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(future)
        future.add_done_callback(self._waiters.discard)
        return future

    def wake(self) -> None:
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _sweep(self) -> None:
        self.looks += 1  # hints may be lost: read the store
        self.wake()
        self._timer = self._clock.call_at(self._clock.monotonic() + self._sweep_every, self._sweep)
        self.release()

    def release(self) -> None:
        """Stop keeping it open for a reader to come."""
        if self.held:
            self.held = False
            self.leave()

    def leave(self) -> None:
        """Count one reader less; the last one closes it."""
        self.readers -= 1
        if self.lag is not None:
            self.lag.until = self._clock.now()
        if not self.readers:
            self._timer.cancel()
            self._closed(self)


class RemoteSource:
    """A remote log, for one of its readers."""

    def __init__(self, log: RemoteLog, meters: RunMetrics, *, complete: bool = False) -> None:
        """`complete`: all that the reader wants was published, or will be, so that it need not look in the store."""
        self._log = log
        self._meters = meters
        self._looked = log.looks if complete else -1  # the value of `looks` when this reader looked last; -1: it must
        self._looked_before = -1
        self._gap = False

    def since(self, seq: int) -> list[Event] | None:
        events = self._log.since(seq)
        return None if not events and self._log.looks != self._looked else events

    def changed(self) -> asyncio.Future[None]:
        return self._log.changed()

    def look(self, seq: int) -> asyncio.Future[None]:
        self._looked_before, self._looked = self._looked, self._log.looks
        self._gap = self._log.since(seq) is None
        return self._log.changed()

    def found(self, events: Sequence[Event]) -> None:
        self._looked = -1  # there may be more than these
        # The first look finds what was there before; and where the owner asked to look, nothing is amiss.
        if self._looked_before == -1 or self._log.hinted > self._looked_before:
            return
        about, lag = self._log.about, self._log.lag
        self._meters.found_in_store(about.agent, about.caller, "gap" if self._gap else "silence")
        if lag is not None:
            lag.from_store += 1

    def row(self) -> RunRow | None:
        return None

    def leave(self) -> None:
        self._log.leave()
