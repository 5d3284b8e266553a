"""Reads a run's log as it grows: from memory if the run is here, else from the store.

If another process owns the run and publishes its commits, those are read first; the store has the rest.
"""

from __future__ import annotations

import asyncio

from ...model.errors import InvalidRequest, RunNotFound
from ...model.events import Event, RunBlocked, RunFinished
from ...model.run import Blocked
from ...runtime.clock import Timer
from ...store.rows import RunRow
from .log_source import LiveSource, LogSource, LogSources
from .run_log import compose_runs

_PAGE = 512
_PIECE = 256 * 1024  # bytes per read: a reader that is far behind gets the log in pieces


class LogReader:
    """Reads the log of a run after event `after`, with one cursor: no event is lost or given twice.

    A reader that falls behind is given neighbouring output deltas composed into one event, whose `first` is the seq of
    the first of them.
    """

    def __init__(self, sources: LogSources, run: str, after: int = 0, *, sealed: bool = False) -> None:
        self._sources = sources
        self._clock = sources.store.clock
        self._run = run
        self.cursor = after
        self.over = False  # the run has ended, and all of it was given
        self._checked = not after  # the cursor is within the log
        self._sealed = sealed  # it may read sealed runs, or has found that this is none
        self._live: LiveSource | None = None  # read last: of a run that is rolled back, only this still has the end
        self._distant: LogSource | None = None  # of a run that is not here; None while the store has more to read
        self._caught_up = False  # the store had no more at the last look
        self._first: Event | None = None
        self._begun = False
        self._waiting: asyncio.Future[None] | None = None
        self._timer: Timer | None = None
        self._deadline = 0.0
        self._rung = False  # the time was up
        self._without_code: Blocked | None = None  # the run is blocked for lack of code, and that is to be told
        self._told_at = -1  # the cursor at which that was told

    async def read(self, timeout: float | None = None, *, follow: bool = True) -> list[Event]:
        """Return the next events, as many as there are: none where `timeout` seconds passed without any, the log is
        `over`, or there are none now and `follow` is false."""
        until = None if timeout is None else self._clock.monotonic() + timeout
        await self._begin(follow)
        while not self.over:
            source = self._source()
            if source is None and self._caught_up and follow:
                source = self._distant = await self._sources.distant(self._run, self._first)
            batch = source.since(self.cursor) if source is not None else None
            if batch:
                return self._give(batch)
            changed: asyncio.Future[None] | None = None
            try:
                if batch is None:
                    # Before the store is read: what is committed meanwhile must not be waited for.
                    changed = source.look(self.cursor) if source is not None else None
                    batch = await self._read_store(source)
                    if batch:
                        return self._give(batch)
                    self.over = self._is_over(await self._row(source))
                elif isinstance(source, LiveSource):
                    self.over = self._is_over(source.row())
                if self.over or not follow:
                    break
                if source is None:
                    self._caught_up = True
                    continue
                changed = changed or source.changed()
                if not await self._wait(changed, until):
                    break
                if self._without_code is not None:
                    return [self._blocked(self._without_code)]
            finally:
                if changed is not None:
                    changed.cancel()
        return []

    async def _begin(self, follow: bool) -> None:
        if follow and not self._begun:
            self._distant = self._sources.followed(self._run, self.cursor)
            self._checked = self._checked or self._distant is not None
            self._sealed = self._sealed or self._distant is not None
        self._begun = True
        if not self._sealed:
            await self._sources.check_open(self._run)
            self._sealed = True
        if not self._checked:
            await self._check()

    def _source(self) -> LogSource | None:
        log = self._sources.live(self._run)
        if log is None and self._live is not None and self._live.log.finished is not None:
            return self._live
        if log is None:
            self._live = None
            return self._distant
        if self._live is None or self._live.log is not log:
            self._live = LiveSource(log)
        return self._live

    async def _read_store(self, source: LogSource | None) -> list[Event]:
        batch = await self._sources.store.runs.events(self._run, self.cursor, _PAGE, _PIECE)
        if batch:
            if batch[0].seq == 1:
                self._first = batch[0]
            # The end of a log is followed only now: most logs that are read have ended.
            self._caught_up = len(batch) < _PAGE and sum(event.size for event in batch) < _PIECE
            if source is not None:
                source.found(batch)
        return batch

    async def _row(self, source: LogSource | None) -> RunRow | None:
        row = source.row() if source is not None else None
        if row is None:
            row = await self._sources.store.runs.get(self._run)
            if row is None and not self.cursor:
                raise RunNotFound(f"there is no run {self._run}")
        return row

    def _is_over(self, row: RunRow | None) -> bool:
        return row is None or (row.status.final and row.next_seq - 1 <= self.cursor)

    def _give(self, batch: list[Event]) -> list[Event]:
        batch = _piece(batch)
        self.cursor = batch[-1].seq
        self.over = isinstance(batch[-1].body, RunFinished)
        if self.over:
            self._leave()
        return compose_runs(batch) if len(batch) > 1 else batch

    async def _check(self) -> None:
        """Raises for a cursor beyond the end: it belongs to another log, or a power cut has shortened this one."""
        log = self._sources.live(self._run)
        if log is not None:
            last = log.committed_seq
        else:
            row = await self._sources.store.runs.get(self._run)
            if row is None:
                raise RunNotFound(f"there is no run {self._run}")
            last = row.next_seq - 1
        if self.cursor > last:
            raise InvalidRequest(
                f"run {self._run} has {last} events, and {self.cursor} is beyond the end; read again from the start"
            )
        self._checked = True

    async def _wait(self, changed: asyncio.Future[None], until: float | None) -> bool:
        """Waits for news; returns False if the time is up first.

        One timer serves many waits: it is set anew only when it rings too early. A timer per event would cost more than
        the event.
        """
        if until is None:
            await self._changed(changed)
            return True
        self._deadline = until
        if self._timer is None or self._timer.when() > self._deadline:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._clock.call_at(self._deadline, self._ring)
        self._rung = False
        await self._changed(changed)
        return not self._rung

    async def _changed(self, changed: asyncio.Future[None]) -> None:
        self._waiting = changed
        watched = self._live is None
        if watched:
            self._sources.watch(self._run, self)
        try:
            await changed
        finally:
            self._waiting = None
            if watched:
                self._sources.unwatch(self._run, self)

    def _ring(self) -> None:
        self._timer = None
        if self._waiting is None:
            return
        if self._clock.monotonic() < self._deadline:
            self._timer = self._clock.call_at(self._deadline, self._ring)
        elif not self._waiting.done():
            self._rung = True
            self._waiting.set_result(None)  # not cancelled: that could not be told from a cancellation of the task

    # -- runs without code --------------------------------------------------------------------------------

    def tell_blocked(self, why: Blocked) -> None:
        """Report that the run is due and no process serves its code, once for each silence. Such a run has no owner, so
        its log does not say it."""
        if self._told_at != self.cursor and self._waiting is not None and not self._waiting.done():
            self._without_code = why
            self._waiting.set_result(None)

    def _blocked(self, why: Blocked) -> Event:
        """Makes an event outside the log. It has the seq of the last one, after which a returning reader continues."""
        self._without_code, self._told_at = None, self.cursor
        return Event(self._run, self.cursor, self._clock.now(), b"", RunBlocked(why.reason, why.message, why.details))

    def _leave(self) -> None:
        distant, self._distant = self._distant, None
        if distant is not None:
            distant.leave()

    def close(self) -> None:
        self._leave()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _piece(batch: list[Event]) -> list[Event]:
    size = 0
    for place, event in enumerate(batch):
        size += event.size
        if size > _PIECE and place:
            return batch[:place]
    return batch
