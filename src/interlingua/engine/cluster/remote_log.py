"""A run that is in another process, as far as that tells of it: for all who read it here.

Nothing here reads the store: who finds nothing in a mirror, or a gap, looks there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from ...bus.port import News
from ...model.events import Event, RunCreated, body_decoder
from ...model.run import RunRequest
from ...model.trace_context import Carrier
from ...store.rows import EventRow, RunRow
from ..ids import now
from ..log.recent_events import RecentEvents
from ..observe import tracing
from ..observe.run_metrics import OTHER, label

_KEEP_BYTES = 2 * 1024 * 1024

_rows_in = msgspec.msgpack.Decoder(list[EventRow])


class About(NamedTuple):
    """Whose run it is, for whoever watches."""

    agent: str = OTHER
    caller: str = OTHER  # its label
    caller_id: str = ""
    trace: Carrier | None = None

    @classmethod
    def of(cls, first: Event) -> About:
        """By the first event of its log."""
        if not isinstance(first.body, RunCreated):
            return cls()  # it was erased
        return cls.asked(first.body.request)

    @classmethod
    def asked(cls, request: RunRequest) -> About:
        return cls(request.agent, label(request.caller), request.caller.id, request.trace)


class Mirror:
    """The newest events of a run that is elsewhere, as its owner told them: without gaps, and never more than that.

    What is not in here is in the store, and so is what is: an owner tells only what it has committed.
    """

    def __init__(self, run: str, about: About, sweep_every: float, closed: Callable[[Mirror], None]) -> None:
        self.run = run
        self.about = about
        self.lag = tracing.Lag(now()) if tracing.wanted() else None
        self.looks = 0  # raised when readers should look in the store
        self.hinted = 0  # what that was when somebody had said so
        self.readers = 0
        self.submitted: tuple[RunRow, RunCreated] | None = None  # what it began as, where that was here
        self.held = False  # for a reader that will come; that counts as one
        self.end: Callable[[], None] = lambda: None
        self._recent = RecentEvents(_KEEP_BYTES)
        self._waiters: set[asyncio.Future[None]] = set()
        self._sweep_every = sweep_every
        self._closed = closed
        self._timer = asyncio.get_running_loop().call_later(sweep_every, self._sweep)

    def hear(self, news: News) -> None:
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
        """Nothing was told before this is known: it is what the run was submitted with."""
        self._recent.add(first)

    @property
    def last(self) -> Event | None:
        """The newest that was told."""
        return self._recent.last

    def since(self, seq: int) -> list[Event] | None:
        """What was told after `seq`; None where something before that was not."""
        return self._recent.since(seq) if self._recent.last is not None else []

    def changed(self) -> asyncio.Future[None]:
        """Done when there is news, or when it is time to look anyway."""
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
        self.looks += 1  # hints may get lost: look anyway
        self.wake()
        self._timer = asyncio.get_running_loop().call_later(self._sweep_every, self._sweep)
        self.let_go()

    def let_go(self) -> None:
        """Whoever is to read it has come by now."""
        if self.held:
            self.held = False
            self.leave()

    def leave(self) -> None:
        """One reader less."""
        self.readers -= 1
        if self.lag is not None:
            self.lag.until = now()
        if not self.readers:
            self._timer.cancel()
            self._closed(self)
