"""Reading a run's log as it grows: from memory where the run is here, from the store where it is not.

Where its owner is another process that tells what it commits, that is read instead; what is missing there is in the
store.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...model.errors import InvalidRequest, RunNotFound
from ...model.events import Event, RunBlocked, RunFinished
from ...model.run import Blocked
from ..cluster.remote_log import About, Mirror
from ..ids import now
from .run_log import LiveLog, compose_runs

if TYPE_CHECKING:
    from ..cluster.link import Between
    from ..runs.queries import RunQueries

_PAGE = 512
_PIECE = 256 * 1024  # bytes that a reader gets at once: one that is far behind must not get all of it in one piece


class Reader:
    """The log of a run after event `after`. One reader, one cursor; nothing is lost or given twice.

    A reader that falls behind is given neighbouring output deltas composed into one event, whose `first` tells the seq
    that it begins with.
    """

    def __init__(self, engine: RunQueries, run: str, after: int = 0, *, sealed: bool = False) -> None:
        self._engine = engine
        self._run = run
        self.cursor = after
        self.over = False  # the run has ended, and all of it was given
        self._checked = not after
        self._sealed = sealed  # whether it may read those, or has found that this is none
        self._log: LiveLog | None = None  # read last: of a run that is rolled back, only this still has the end
        self._mirror: Mirror | None = None  # of a run that is in another process
        self._about: About | None = None  # whose that is; None: not known yet
        self._looked = -1  # how often that had asked to look in the store, when this was done last
        self._begun = False
        self._waiting: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._without_code: Blocked | None = None  # the run is blocked for lack of code, and that is to be told
        self._told_at = -1  # the cursor at which that was told

    async def read(self, timeout: float | None = None, *, follow: bool = True) -> list[Event]:
        """The next events, as many as there are. None when `timeout` seconds passed without any, when the log is
        `over`, or when there are none now and `follow` is false."""
        until = None if timeout is None else asyncio.get_running_loop().time() + timeout
        others = self._engine.worker.others
        if others is not None and follow and not self._begun:
            self._take_expected(others)
        self._begun = True
        if not self._sealed:
            await self._engine.check_open(self._run)
            self._sealed = True
        if not self._checked:
            await self._check()
        while not self.over:
            log = self._engine.worker.log_of(self._run)
            if log is None and self._log is not None and self._log.finished is not None:
                log = self._log
            self._log = log
            mirror = self._mirror if log is None else None
            batch = log.since(self.cursor) if log is not None else None
            if mirror is not None:
                batch = mirror.since(self.cursor)
                if not batch and mirror.looks != self._looked:
                    batch = None
            changed: asyncio.Future[None] | None = None
            stored = batch is None
            if batch is None:
                # Before the store is read: what is committed meanwhile must not be waited for.
                before = self._looked
                if mirror is not None:
                    self._looked, changed = mirror.looks, mirror.changed()
                elif log is not None:
                    changed = log.changed()
                elif others is None:
                    changed = self._engine.next_hint(self._run)
                gap = mirror is not None and mirror.since(self.cursor) is None
                batch = await self._engine.store.runs.events(self._run, self.cursor, _PAGE, _PIECE)
                if batch and batch[0].seq == 1 and others is not None:
                    self._about = About.of(batch[0])
                if mirror is not None and batch and before != -1:  # first it looks for what was there before
                    self._note(mirror, gap, hinted=mirror.hinted > before)
                if (
                    not batch
                    and not self.cursor
                    and log is None
                    and await self._engine.store.runs.get(self._run) is None
                ):
                    if changed is not None:
                        changed.cancel()
                    raise RunNotFound(f"there is no run {self._run}")
            if batch:
                if changed is not None:
                    changed.cancel()
                more = len(batch) >= _PAGE or sum(event.size for event in batch) >= _PIECE
                batch = _piece(batch)
                self.cursor = batch[-1].seq
                self.over = isinstance(batch[-1].body, RunFinished)
                if self.over:
                    self._leave_mirror()
                elif stored:
                    self._looked = -1  # there may be more than this piece
                    if log is None and follow and not more:
                        await self._listen()
                return compose_runs(batch) if len(batch) > 1 else batch
            if log is not None:
                self.over = log.finished is not None and log.committed_seq <= self.cursor
                changed = changed or log.changed()
            elif mirror is not None and not stored:
                changed = mirror.changed()
            else:
                row = await self._engine.store.runs.get(self._run)
                self.over = row is None or (row.status.final and row.next_seq - 1 <= self.cursor)
            if changed is None:
                if self.over or not follow:
                    return []
                await self._listen()
                continue
            if self.over or not follow:
                changed.cancel()
            elif not await self._wait(changed, until):
                break
            elif self._without_code is not None:
                return [self._blocked(self._without_code)]
            if not follow:
                break
        return []

    # -- runs without code --------------------------------------------------------------------------------

    def tell_blocked(self, why: Blocked) -> None:
        """Tell that the run is due and nobody serves its code: once for each silence. Nobody owns such a run, so nobody
        writes that into its log."""
        if self._told_at != self.cursor and self._waiting is not None and not self._waiting.done():
            self._without_code = why
            self._waiting.set_result(None)

    def _blocked(self, why: Blocked) -> Event:
        """An event that is not in the log. It has the seq of the last one: who comes back goes on behind that."""
        self._without_code, self._told_at = None, self.cursor
        return Event(self._run, self.cursor, now(), b"", RunBlocked(why.reason, why.message, why.details))

    def _note(self, mirror: Mirror, gap: bool, *, hinted: bool) -> None:
        """Events of a run elsewhere came from the store. Where somebody has said that they are there, nothing is
        amiss: what was committed before a reader was known is not told again."""
        others = self._engine.worker.others
        if others is not None and not hinted:
            others.found_in_store(mirror, "gap" if gap else "silence")

    async def _check(self) -> None:
        """A cursor beyond the end is of another log, or of one that a power cut has shortened."""
        log = self._engine.worker.log_of(self._run)
        if log is not None:
            last = log.committed_seq
        else:
            row = await self._engine.store.runs.get(self._run)
            if row is None:
                raise RunNotFound(f"there is no run {self._run}")
            last = row.next_seq - 1
        if self.cursor > last:
            raise InvalidRequest(
                f"run {self._run} has {last} events, and {self.cursor} is beyond the end; read again from the start"
            )
        self._checked = True

    async def _wait(self, changed: asyncio.Future[None], until: float | None) -> bool:
        """Whether there is news before the time is up.

        One timer serves many waits: it is set anew only when it rings too early. A timer per event would cost more than
        the event.
        """
        if until is None:
            await self._changed(changed)
            return True
        loop = asyncio.get_running_loop()
        self._deadline = until
        if self._timer is None or self._timer.when() > self._deadline:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(self._deadline, self._ring)
        self._rung = False
        await self._changed(changed)
        return not self._rung

    async def _changed(self, changed: asyncio.Future[None]) -> None:
        self._waiting = changed
        watched = self._log is None
        if watched:
            self._engine.blocked_report.watch(self._run, self)
        try:
            await changed
        finally:
            self._waiting = None
            if watched:
                self._engine.blocked_report.unwatch(self._run, self)

    _rung = False  # the time was up

    def _ring(self) -> None:
        self._timer = None
        if self._waiting is None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._deadline:
            self._timer = loop.call_at(self._deadline, self._ring)
        elif not self._waiting.done():
            self._rung = True
            self._waiting.set_result(None)  # not cancelled: that could not be told from a cancellation of the task

    async def _listen(self) -> None:
        """Only when there is nothing more to read: most logs that are read have ended, and nobody needs to be told of
        their readers."""
        others = self._engine.worker.others
        if self._mirror is None and others is not None:
            if self._about is None:  # who goes on from a cursor has not seen how the run began
                first = await self._engine.store.runs.events(self._run, 0, 1)
                self._about = About.of(first[0]) if first else About()
            self._mirror, self._looked = others.mirror(self._run, self._about), -1

    def _take_expected(self, others: Between) -> None:
        """Of a run that was just submitted here, all that there is was told, or will be."""
        mirror = others.expected(self._run)
        if mirror is None or mirror.submitted is None or self._engine.worker.log_of(self._run) is not None:
            return
        row, _ = mirror.submitted
        if row.sealed or mirror.last is None or self.cursor > mirror.last.seq:
            return  # let the store say what is wrong
        self._mirror, self._looked = others.mirror(self._run, mirror.about), mirror.looks
        self._about, self._checked, self._sealed = mirror.about, True, True

    def _leave_mirror(self) -> None:
        if self._mirror is not None:
            self._mirror.leave()
            self._mirror = None

    def close(self) -> None:
        self._leave_mirror()
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
