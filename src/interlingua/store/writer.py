"""The writer: the one thread of a process that writes to the store.

All that is queued on the event loop becomes one transaction; while it commits, the next batch gathers. There is no
timer. Each database has a writer of its own that makes the transactions.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from ..model.errors import InterlinguaError, StoreError
from .changes import Appender, CommitThread, DeleteRun, Fenced, Sealed
from .ports import settle
from .sql.admission import AdmitRun, submit_certain
from .sql.dialect import Call, Connection, LockList
from .sql.log_side_effects import apply_change, empty_inboxes

log = logging.getLogger("interlingua.store")

# A function, its future, a callback for its result, its locks, and a test that it writes only output.
QueuedCall = tuple[Call, asyncio.Future[Any], Callable[[Any], None] | None, LockList, Callable[[], bool] | None]

_MAX_LOGS = 2000  # per transaction
_MAX_BYTES = 16 * 1024 * 1024  # of sealed logs, after which the others wait for the next transaction
_PATIENCE = 4  # turns of the loop in which nothing is added to a batch that waits for more
_MOST_TURNS = 8  # that it waits at all


class InDoubt(StoreError):
    """The store went away while it committed. The writer settles the calls when it knows whether they were written."""


class Batch:
    def __init__(self, sealed: list[Sealed], calls: list[QueuedCall], new: int = 0) -> None:
        self.sealed = sealed
        self.new = new  # submissions among the calls
        self.calls = calls
        self.refusals: dict[int, BaseException] = {}  # by place in `sealed`
        self.results: list[tuple[Any, BaseException | None]] = []

    @property
    def only_output(self) -> bool:
        """Returns true if nothing of it was acknowledged, so that it need not wait for the disk."""
        return all(
            not s.changes and s.row.worker and all(e.kind == "delta" for e in s.events) for s in self.sealed
        ) and all(only_output is not None and only_output() for _, _, _, _, only_output in self.calls)


class Writer:
    """Gathers batches, seals logs, and settles futures. A subclass for each database makes the transactions."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._logs: deque[Appender] = deque()
        self._calls: list[QueuedCall] = []
        self._new: list[
            tuple[QueuedCall, Callable[[], None] | None]
        ] = []  # submissions, and what is called at their seal
        self._kick_due = False
        self._queued_then = self._patience = self._turns = 0
        self._crowd = False  # the last commit was of several
        self._busy = False
        self._closing = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._work: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self.batches = 0  # committed so far
        self._thread = threading.Thread(target=self._run, name="interlingua-writer", daemon=True)

    # -- on the event loop --------------------------------------------------------------------------------

    def append(self, log: Appender) -> None:
        if self._closing:
            raise StoreError("the store is closed")
        self._logs.append(log)
        self._schedule()

    def call(
        self, fn: Call, then: Callable[[Any], None] | None = None, locks: LockList = (), *,
        only_output: Callable[[], bool] | None = None,
    ) -> asyncio.Future[Any]:  # fmt: skip
        """Queues a call. `only_output` is called right before it, in the thread: true if it writes only output."""
        if self._closing:
            raise StoreError("the store is closed")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._calls.append((fn, future, then, locks, only_output))
        self._schedule()
        return future

    def submit(
        self, fn: Call, then: Callable[[Any], None] | None, locks: LockList, sealing: Callable[[], None] | None
    ) -> asyncio.Future[Any]:
        """Queues a new run. `sealing` is called when its batch is made: later calls follow in the same transaction."""
        if self._closing:
            raise StoreError("the store is closed")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._new.append(((fn, future, then, locks, None), sealing))
        self._schedule()
        return future

    def backlog(self) -> int:
        return len(self._logs) + len(self._new) + len(self._calls)

    async def close(self) -> None:
        while self.backlog() or self._busy:
            await self._idle.wait()
        self._closing = True
        self._work.put(None)
        await self._loop.run_in_executor(None, self._thread.join)

    @property
    def _waiting(self) -> int:
        """Counts logs and submissions: more of these may come in a moment."""
        return len(self._logs) + len(self._new)

    def _schedule(self) -> None:
        self._idle.clear()
        if not self._kick_due and not self._busy:
            self._kick_due = True
            self._queued_then, self._turns = self._waiting, _MOST_TURNS
            # Clients whose runs were just committed come back with the next ones: together these are one commit.
            self._patience = _PATIENCE if self._crowd else 0
            self._loop.call_soon(self._kick)

    def _kick(self) -> None:
        # Not at once: the first turns of an agent are one commit, and so are the submissions of clients that were just
        # woken. So as long as the queue grew in this turn, wait for one more.
        queued = self._waiting
        if queued and not self._busy and self._turns and (queued > self._queued_then or self._patience):
            self._turns -= 1
            self._patience -= queued == self._queued_then
            self._queued_then = queued
            self._loop.call_soon(self._kick)
            return
        self._kick_due = False
        if self._busy:
            return
        logs, sealed, size = self._logs, list[Sealed](), 0
        while logs and len(sealed) < _MAX_LOGS and size < _MAX_BYTES:
            entry = logs.popleft()
            try:
                sealed.append(entry.seal())
                size += sum([len(event.body) for event in sealed[-1].events if event.body is not None])
            except Exception as error:  # one log that cannot be written must not take its neighbours along
                self._guarded(entry.refused, None, self._error_for(error))
        new, self._new = self._new, []
        for _, sealing in new:
            if sealing is not None:
                self._guarded(sealing)
        # A seal may make calls: they are done in this batch, after the submissions.
        calls, self._calls = [*(asked for asked, _ in new), *self._calls], []
        if not sealed and not calls:
            self._idle.set()
            return
        self._busy = True
        self._work.put(Batch(sealed, calls, len(new)))

    def _done(self, batch: Batch) -> None:
        self._busy = False
        self._crowd = len(batch.sealed) + batch.new > 1
        self.batches += 1
        for place, sealed in enumerate(batch.sealed):
            error = batch.refusals.get(place) if batch.refusals else None
            if error is None:
                self._guarded(sealed.log.committed, sealed)
            else:
                self._guarded(sealed.log.refused, sealed, error)
        self._settle_calls(batch.calls, batch.results)
        if self.backlog():
            self._schedule()
        elif not self._kick_due:
            self._idle.set()

    def _settle_calls(self, calls: list[QueuedCall], results: list[tuple[Any, BaseException | None]]) -> None:
        for (_, future, then, _, _), (result, error) in zip(calls, results, strict=True):
            if isinstance(error, InDoubt):
                continue
            if then is not None and error is None:
                self._guarded(then, result)
            settle(future, result, error)

    @staticmethod
    def _guarded(tell: Callable[..., None], *args: Any) -> None:
        try:
            tell(*args)
        except Exception:
            log.exception("a log or a caller could not take the result of its write")

    # -- in the thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Takes batches from `_work` until None comes; commits each, and calls `_done` on the event loop."""
        raise NotImplementedError

    def _transaction(
        self,
        sealed: list[Sealed],
        calls: list[QueuedCall],
        results: list[tuple[Any, BaseException | None]],
    ) -> None:
        """Writes all of it, or raises and has written nothing; with InDoubt, that is known later."""
        raise NotImplementedError

    def _is_hopeless(self, error: Exception) -> bool:
        """Returns true if every other write would fail in the same way: then trying them one by one only takes time."""
        raise NotImplementedError

    def _call_on_loop(self, fn: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone, and all that waited on it
            self._loop.call_soon_threadsafe(fn, *args)

    def _commit(self, batch: Batch) -> None:
        try:
            self._transaction(batch.sealed, batch.calls, batch.results)
            return
        except Exception as error:
            if len(batch.sealed) + len(batch.calls) == 1 or self._is_hopeless(error):
                self._refuse_all(batch, error)
                return
        # Something in it cannot be written. One by one, so that it disturbs nothing else.
        batch.results.clear()
        for place, sealed in enumerate(batch.sealed):
            try:
                self._transaction([sealed], [], [])
            except Exception as error:
                batch.refusals[place] = self._error_for(error)
        for call in batch.calls:
            alone: list[tuple[Any, BaseException | None]] = []
            try:
                self._transaction([], [call], alone)
            except Exception as error:
                alone = [(None, self._error_for(error))]
            batch.results.extend(alone)

    def _refuse_all(self, batch: Batch, error: Exception) -> None:
        batch.results.clear()
        for place in range(len(batch.sealed)):
            batch.refusals[place] = self._error_for(error)
        batch.results.extend((None, self._error_for(error)) for _ in batch.calls)

    def _error_for(self, error: Exception) -> BaseException:
        if isinstance(error, Fenced | InterlinguaError):
            return error
        log.error("the store could not write: %s", error)
        wrapped = StoreError("the store could not write", why=error)
        wrapped.__cause__ = error
        return wrapped


def run_calls(conn: Connection, calls: list[QueuedCall], results: list[tuple[Any, BaseException | None]]) -> None:
    """Runs calls, one after the other; neighbours whose admission is certain together."""
    for certain, some in itertools.groupby((fn for fn, *_ in calls), key=_is_certain):
        if certain:
            submissions = [fn.submission for fn in some if isinstance(fn, AdmitRun)]
            results.extend((submitted, None) for submitted in submit_certain(conn, submissions))
            continue
        for fn in some:
            try:
                results.append((fn(conn), None))
            except InterlinguaError as error:  # refused before anything was written
                results.append((None, error))


def _is_certain(call: Call) -> bool:
    return isinstance(call, AdmitRun) and call.is_certain


def write_changes(conn: Connection, batch: list[Sealed]) -> None:
    """Applies the changes of sealed logs, and the consequences of their ends."""
    thread_ends: list[CommitThread] = []
    for sealed in batch:
        for change in sealed.changes:
            if isinstance(change, CommitThread):
                thread_ends.append(change)
            else:
                apply_change(conn, change, sealed.row.updated_at)
    for end in thread_ends:
        apply_change(conn, end, batch[0].row.updated_at)
    ended = [sealed.row.id for sealed in batch if sealed.row.status.final]
    if ended:
        forgotten = empty_inboxes(conn, ended)
        for run in forgotten:
            apply_change(conn, DeleteRun(run), batch[0].row.updated_at)
        for sealed in batch:
            sealed.forgotten = sealed.row.id in forgotten
