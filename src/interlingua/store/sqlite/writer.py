"""The writer of a SQLite file.

The statements of a batch are few and wide, because every statement gives the GIL away and must win it back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...model.errors import StoreError
from ...model.status import Status
from ...runtime.clock import Clock
from ..changes import Fenced, Sealed
from ..rows import EVENT_COLUMNS
from ..sql.dialect import insert
from ..writer import Batch, QueuedCall, Writer, run_calls, write_changes
from .connection import SQLiteConnection, begin, connect

log = logging.getLogger("interlingua.store")

_UPDATE_RUN = (
    "UPDATE runs SET status=?, updated_at=?, worker=?, next_seq=?, head=?, crashes=?, ran=?, queued=?, "
    "wake_at=CASE WHEN ? AND EXISTS (SELECT 1 FROM inbox WHERE run=runs.id) THEN 0 ELSE ? END "
    "WHERE id=? AND epoch=? AND next_seq=?"
)
_FAST_POLL, _SLOW_POLL, _FAST_FOR = 0.005, 0.1, 5.0


class OpenedFile:
    """The file that a store was opened with. Another one may be at its path later."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._id = self._look()

    def _look(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def trouble(self) -> str | None:
        now = self._look()
        if now == self._id:
            return None
        what = "is gone" if now is None else "was replaced by another one"
        return (
            f"the store file {self._path} {what} while this process used it, so nothing is written any more; "
            "put the file back, or start the process again"
        )

    def check(self) -> None:
        """Raises StoreError where what is written would be lost."""
        if (trouble := self.trouble()) is not None:
            raise StoreError("the store's file is gone or was replaced", why=trouble)


class SQLiteWriter(Writer):
    def __init__(
        self,
        file: OpenedFile,
        path: Path,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        on_foreign: Callable[[], None],
    ) -> None:
        super().__init__(loop)
        self._clock = clock
        self._file = file
        self._on_foreign = on_foreign
        self._conn = connect(path)
        self._full = True
        self._thread.start()

    def _run(self) -> None:
        conn = self._conn
        version = conn.execute("PRAGMA data_version").fetchone()[0]
        fast_until = looked = 0.0
        while True:
            now = self._clock.monotonic()
            poll = _FAST_POLL if now < fast_until else _SLOW_POLL
            try:
                batch = self._work.get(timeout=poll)
            except queue.Empty:
                batch = None
            else:
                if batch is None:
                    break
                self._commit(batch)
                self._call_on_loop(self._done, batch)
                now = self._clock.monotonic()
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
                self._call_on_loop(self._on_foreign)
        with contextlib.suppress(sqlite3.Error):
            conn.execute("PRAGMA optimize")
        conn.close()

    def _transaction(
        self,
        sealed: list[Sealed],
        calls: list[QueuedCall],
        results: list[tuple[Any, BaseException | None]],
    ) -> None:
        conn = self._conn
        full = not Batch(sealed, calls).only_output
        if full is not self._full:
            conn.execute(f"PRAGMA synchronous={'FULL' if full else 'NORMAL'}")
            self._full = full
        begin(conn)
        try:
            self._file.check()
            self._write(conn, sealed)
            run_calls(conn, calls, results)
            conn.execute("COMMIT")
        except BaseException:
            results.clear()
            with contextlib.suppress(sqlite3.Error):
                conn.execute("ROLLBACK")
            raise

    @staticmethod
    def _write(conn: SQLiteConnection, batch: list[Sealed]) -> None:
        if not batch:
            return
        changed: list[Any] = []
        events: list[Any] = []
        for sealed in batch:
            row = sealed.row
            changed.append(
                (
                    row.status._value_, row.updated_at, row.worker, row.next_seq, row.head, row.crashes, row.ran,
                    row.queued, row.worker is None and not row.status.final and row.status is not Status.PENDING,
                    row.wake_at,
                    row.id, row.epoch, sealed.expected_seq,
                )
            )  # fmt: skip
            events.extend((e.run, e.seq, e.kind, e.time, e.hash, e.body) for e in sealed.events)
        before = conn.total_changes
        conn.executemany(_UPDATE_RUN, changed)
        if conn.total_changes - before != len(changed):
            raise Fenced("another worker owns this run now")
        insert(conn, "events", EVENT_COLUMNS, events)
        write_changes(conn, batch)

    def _is_hopeless(self, error: Exception) -> bool:
        if isinstance(error, StoreError):
            return self._file.trouble() is not None
        return isinstance(error, sqlite3.OperationalError) and any(
            word in str(error) for word in ("locked", "busy", "full", "I/O", "readonly", "unable to open")
        )
