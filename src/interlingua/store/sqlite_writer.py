"""The one thread of a process that writes to the SQLite file.

Whatever is queued on the event loop becomes one transaction; while it commits, the next batch gathers. There is no
timer. The statements of a batch are few and wide, because every statement gives the GIL away and must win it back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..model.errors import InterlinguaError, StoreError
from ..model.status import Status
from .base import EVENT_COLUMNS, Appender, CommitThread, DeleteRun, Fenced, RunRow, Sealed, settle
from .sqlite_changes import apply_change, rolled_back

log = logging.getLogger("interlingua.store")

Call = Callable[[sqlite3.Connection], Any]
Asked = tuple[Call, asyncio.Future[Any], Callable[[Any], None] | None]  # what to do, who waits, and what then

RUN_COLUMNS = RunRow.__struct_fields__
_STATUS = RUN_COLUMNS.index("status")
_UPDATE_RUN = (
    "UPDATE runs SET status=?, updated_at=?, worker=?, next_seq=?, head=?, crashes=?, ran=?, queued=?, "
    "wake_at=CASE WHEN ? AND EXISTS (SELECT 1 FROM inbox WHERE run=runs.id) THEN 0 ELSE ? END "
    "WHERE id=? AND epoch=? AND next_seq=?"
)
_WIDEST = 64  # rows of one statement; the connection keeps the statement of every width
_MAX_LOGS = 2000  # per transaction
_PATIENCE = 4  # turns of the loop in which nothing is added to a batch that waits for more
_MOST_TURNS = 8  # that it waits at all
_FAST_POLL, _SLOW_POLL, _FAST_FOR = 0.005, 0.1, 5.0
_LOCK_PATIENCE = 30.0


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection with the settings that everything here counts on."""
    conn = sqlite3.connect(
        path, timeout=_LOCK_PATIENCE, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    _patiently(conn, "PRAGMA journal_mode=WAL")  # two processes that make a new file together: SQLite does not wait
    conn.execute("PRAGMA synchronous=FULL")
    conn.execute("PRAGMA foreign_keys=OFF")
    conn.execute("PRAGMA wal_autocheckpoint=4000")
    # Readers are many, and the system keeps the file's pages for all of them.
    conn.execute(f"PRAGMA cache_size={-4096 if read_only else -32768}")
    conn.execute("PRAGMA temp_store=MEMORY")
    if not read_only:
        conn.execute("PRAGMA busy_timeout=0")  # see begin()
    if read_only:
        conn.execute("PRAGMA query_only=ON")
    return conn


def insert(conn: sqlite3.Connection, table: str, columns: Sequence[str], rows: list[Any]) -> None:
    """Insert many rows in few statements: one for every 64, and one for the rest."""
    for at in range(0, len(rows), _WIDEST):
        some = rows[at : at + _WIDEST]
        conn.execute(_insert_sql(table, columns, len(some)), [value for row in some for value in row])


_sql_cache: dict[tuple[str, int], str] = {}


def _insert_sql(table: str, columns: Sequence[str], width: int) -> str:
    key = (table, width)
    sql = _sql_cache.get(key)
    if sql is None:
        marks = f"({','.join('?' * len(columns))})"
        sql = f"INSERT INTO {table} ({','.join(columns)}) VALUES {','.join([marks] * width)}"
        _sql_cache[key] = sql
    return sql


class Batch:
    def __init__(self, sealed: list[Sealed], calls: list[Asked]) -> None:
        self.sealed = sealed
        self.calls = calls
        self.refusals: dict[int, BaseException] = {}  # by place in `sealed`
        self.results: list[tuple[Any, BaseException | None]] = []

    @property
    def only_output(self) -> bool:
        """Nothing here was acknowledged to anyone, so it need not wait for the disk."""
        return not self.calls and all(
            not s.insert and not s.changes and s.row.worker and all(e.kind == "delta" for e in s.events)
            for s in self.sealed
        )


class Writer:
    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop, on_foreign: Callable[[], None]) -> None:
        self.path = path
        self._loop = loop
        self._on_foreign = on_foreign
        self._logs: deque[Appender] = deque()
        self._calls: list[Asked] = []
        self._kick_due = False
        self._queued_then = self._patience = self._turns = 0
        self._crowd = False  # the last commit was of several
        self._busy = False
        self._closing = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._work: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._conn = connect(path)
        self._full = True
        self.batches = 0  # committed so far
        self._thread = threading.Thread(target=self._run, name="interlingua-writer", daemon=True)
        self._thread.start()

    # -- on the event loop --------------------------------------------------------------------------------

    def append(self, log: Appender) -> None:
        if self._closing:
            raise StoreError("the store is closed")
        self._logs.append(log)
        self._schedule()

    def call(self, fn: Call, then: Callable[[Any], None] | None = None) -> asyncio.Future[Any]:
        if self._closing:
            raise StoreError("the store is closed")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._calls.append((fn, future, then))
        self._schedule()
        return future

    def backlog(self) -> int:
        return len(self._logs) + len(self._calls)

    async def close(self) -> None:
        while self._logs or self._calls or self._busy:
            await self._idle.wait()
        self._closing = True
        self._work.put(None)
        await self._loop.run_in_executor(None, self._thread.join)

    def _schedule(self) -> None:
        self._idle.clear()
        if not self._kick_due and not self._busy:
            self._kick_due = True
            self._queued_then, self._turns = len(self._logs), _MOST_TURNS
            # Those whose runs were just committed come back with the next ones: together they are one commit, not two.
            self._patience = _PATIENCE if self._crowd else 0
            self._loop.call_soon(self._kick)

    def _kick(self) -> None:
        # Not at once: a client that was just woken submits in this turn of the loop and its agent runs in the next, and
        # then a whole short run is one commit. So as long as the queue grew in this turn, wait for one more.
        queued = len(self._logs)
        if queued and not self._busy and self._turns and (queued > self._queued_then or self._patience):
            self._turns -= 1
            self._patience -= queued == self._queued_then
            self._queued_then = queued
            self._loop.call_soon(self._kick)
            return
        self._kick_due = False
        if self._busy:
            return
        logs, sealed = self._logs, list[Sealed]()
        while logs and len(sealed) < _MAX_LOGS:
            entry = logs.popleft()
            try:
                sealed.append(entry.seal())
            except Exception as error:  # one log that cannot be written must not take its neighbours along
                self._guarded(entry.refused, None, self._told(error))
        calls, self._calls = self._calls, []
        if not sealed and not calls:
            self._idle.set()
            return
        self._busy = True
        self._work.put(Batch(sealed, calls))

    def _done(self, batch: Batch) -> None:
        self._busy = False
        self._crowd = len(batch.sealed) > 1
        self.batches += 1
        for place, sealed in enumerate(batch.sealed):
            error = batch.refusals.get(place) if batch.refusals else None
            if error is None:
                self._guarded(sealed.log.committed, sealed)
            else:
                self._guarded(sealed.log.refused, sealed, error)
        for (_, future, then), (result, error) in zip(batch.calls, batch.results, strict=True):
            if then is not None and error is None:
                self._guarded(then, result)
            settle(future, result, error)
        if self._logs or self._calls:
            self._schedule()
        elif not self._kick_due:
            self._idle.set()

    @staticmethod
    def _guarded(tell: Callable[..., None], *args: Any) -> None:
        try:
            tell(*args)
        except Exception:
            log.exception("a log could not take the news of its own writing")

    # -- in the thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        conn = self._conn
        version = conn.execute("PRAGMA data_version").fetchone()[0]
        fast_until = looked = 0.0
        while True:
            now = time.monotonic()
            poll = _FAST_POLL if now < fast_until else _SLOW_POLL
            try:
                batch = self._work.get(timeout=poll)
            except queue.Empty:
                batch = None
            else:
                if batch is None:
                    break
                self._commit(batch)
                self._tell(self._done, batch)
                now = time.monotonic()
                if now - looked < poll:
                    continue
            looked = now
            try:
                seen = conn.execute("PRAGMA data_version").fetchone()[0]
            except sqlite3.Error as error:  # locked for a moment: look again later
                log.warning("could not look for changes: %s", error)
                continue
            if seen != version:
                version = seen
                fast_until = now + _FAST_FOR
                self._tell(self._on_foreign)
        with contextlib.suppress(sqlite3.Error):
            conn.execute("PRAGMA optimize")
        conn.close()

    def _tell(self, fn: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone: nobody is listening any more
            self._loop.call_soon_threadsafe(fn, *args)

    def _commit(self, batch: Batch) -> None:
        try:
            self._transaction(batch.sealed, batch.calls, batch.results)
            return
        except Exception as error:
            if len(batch.sealed) + len(batch.calls) == 1 or _hopeless(error):
                self._refuse_all(batch, error)
                return
        # Something in it cannot be written. One by one, so that it disturbs nothing else.
        batch.results.clear()
        for place, sealed in enumerate(batch.sealed):
            try:
                self._transaction([sealed], [], [])
            except Exception as error:
                batch.refusals[place] = self._told(error)
        for call in batch.calls:
            alone: list[tuple[Any, BaseException | None]] = []
            try:
                self._transaction([], [call], alone)
            except Exception as error:
                alone = [(None, self._told(error))]
            batch.results.extend(alone)

    def _refuse_all(self, batch: Batch, error: Exception) -> None:
        batch.results.clear()
        for place in range(len(batch.sealed)):
            batch.refusals[place] = self._told(error)
        batch.results.extend((None, self._told(error)) for _ in batch.calls)

    @staticmethod
    def _told(error: Exception) -> BaseException:
        if isinstance(error, Fenced | InterlinguaError):
            return error
        log.error("the store could not write: %s", error)
        wrapped = StoreError(f"the store could not write: {error}")
        wrapped.__cause__ = error
        return wrapped

    def _transaction(
        self,
        sealed: list[Sealed],
        calls: list[Asked],
        results: list[tuple[Any, BaseException | None]],
    ) -> None:
        conn = self._conn
        full = not Batch(sealed, calls).only_output
        if full is not self._full:
            conn.execute(f"PRAGMA synchronous={'FULL' if full else 'NORMAL'}")
            self._full = full
        begin(conn)
        try:
            self._write(conn, sealed)
            for fn, _, _ in calls:
                try:
                    results.append((fn(conn), None))
                except InterlinguaError as error:  # refused before anything was written
                    results.append((None, error))
            conn.execute("COMMIT")
        except BaseException:
            results.clear()
            with contextlib.suppress(sqlite3.Error):
                conn.execute("ROLLBACK")
            raise

    @staticmethod
    def _write(conn: sqlite3.Connection, batch: list[Sealed]) -> None:
        if not batch:
            return
        new: list[Any] = []
        changed: list[Any] = []
        events: list[Any] = []
        for sealed in batch:
            row = sealed.row
            if sealed.insert:
                new.append(_plain(row))
            else:
                changed.append(
                    (
                        row.status._value_, row.updated_at, row.worker, row.next_seq, row.head, row.crashes, row.ran,
                        row.queued, row.worker is None and not row.status.final and row.status is not Status.PENDING,
                        row.wake_at,
                        row.id, row.epoch, sealed.expected_seq,
                    )
                )  # fmt: skip
            events.extend((e.run, e.seq, e.kind, e.time, e.hash, e.body) for e in sealed.events)
        if new:
            insert(conn, "runs", RUN_COLUMNS, new)
        if changed:
            before = conn.total_changes
            conn.executemany(_UPDATE_RUN, changed)
            if conn.total_changes - before != len(changed):
                raise Fenced("another worker owns this run now")
        insert(conn, "events", EVENT_COLUMNS, events)
        thread_ends: list[CommitThread] = []
        for sealed in batch:
            for change in sealed.changes:
                if isinstance(change, CommitThread):
                    thread_ends.append(change)
                else:
                    apply_change(conn, change, sealed.row.updated_at)
        for end in thread_ends:
            apply_change(conn, end, batch[0].row.updated_at)
        ended = [sealed.row.id for sealed in batch if sealed.row.status.final and not sealed.insert]
        if ended:
            forgotten = rolled_back(conn, ended)
            conn.executemany("DELETE FROM inbox WHERE run=?", [(run,) for run in ended])  # nobody will read it
            for run in forgotten:
                apply_change(conn, DeleteRun(run), batch[0].row.updated_at)
            for sealed in batch:
                sealed.forgotten = sealed.row.id in forgotten


def _plain(row: RunRow) -> tuple[Any, ...]:
    # sqlite3 looks for an adapter of everything that is not exactly a str, which a Status is not.
    values = msgspec.structs.astuple(row)
    return (*values[:_STATUS], row.status._value_, *values[_STATUS + 1 :])


def _hopeless(error: Exception) -> bool:
    """Whether every other write would meet the same: then trying them one by one only makes everybody wait longer."""
    return isinstance(error, sqlite3.OperationalError) and any(
        word in str(error) for word in ("locked", "busy", "full", "I/O", "readonly", "unable to open")
    )


def begin(conn: sqlite3.Connection) -> None:
    _patiently(conn, "BEGIN IMMEDIATE")


def _patiently(conn: sqlite3.Connection, sql: str) -> None:
    """Execute what needs the lock, waiting in short steps: SQLite's own waiting grows to 100 ms and starves the
    unlucky."""
    deadline = time.monotonic() + _LOCK_PATIENCE
    pause = 0.0005
    while True:
        try:
            conn.execute(sql)
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) and "busy" not in str(error):
                raise
            if time.monotonic() > deadline:
                raise
            time.sleep(pause)
            pause = min(pause * 1.5, 0.005)
