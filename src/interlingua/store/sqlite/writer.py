"""The writer of a SQLite file, and its connections.

The statements of a batch are few and wide, because every statement gives the GIL away and must win it back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sqlite3
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...model.errors import Unavailable
from ...model.status import Status
from ..changes import Fenced, Sealed
from ..rows import EVENT_COLUMNS
from ..sql.database import RUN_COLUMNS, Connection, Dialect, Lead, Lock, Wanted, insert
from ..sql.document_writes import chunks, marks
from ..sql.json_terms import rows_of, searched
from ..writer import Asked, Batch, Writer, answered, write_changes

log = logging.getLogger("interlingua.store")

_UPDATE_RUN = (
    "UPDATE runs SET status=?, updated_at=?, worker=?, next_seq=?, head=?, crashes=?, ran=?, queued=?, "
    "wake_at=CASE WHEN ? AND EXISTS (SELECT 1 FROM inbox WHERE run=runs.id) THEN 0 ELSE ? END "
    "WHERE id=? AND epoch=? AND next_seq=?"
)
_FAST_POLL, _SLOW_POLL, _FAST_FOR = 0.005, 0.1, 5.0
_LOCK_PATIENCE = 30.0
_ID, _METADATA, _CALLER = (RUN_COLUMNS.index(name) for name in ("id", "metadata", "caller"))
_FEW = 1000  # rows that are read and put in order rather than walked past
_SOME = 50_000  # rows whose ids are listed, so that others are not read on the way


class _SQLite(Dialect):
    error = sqlite3.Error
    operational = sqlite3.OperationalError
    integrity = sqlite3.IntegrityError
    indexes_json = True

    def lead(self, conn: Connection, table: str, wanted: Wanted, caller: str | None) -> Lead:
        """SQLite has no statistics: of what is wanted, the rarest is found by counting, up to what is worth a list."""
        fewest: tuple[int, tuple[int, int]] = _SOME + 1, (0, 0)
        for column, name, value in wanted:
            terms = searched(f"{table}.{column}", name, value, caller)
            sql = "SELECT count(*) FROM (SELECT 1 FROM terms WHERE term IN (?,?) LIMIT ?)"
            fewest = min(fewest, (int(conn.execute(sql, (*terms, fewest[0])).fetchone()[0]), terms))
        count, found = fewest
        if count > _SOME:
            return Lead()
        return Lead(["id IN (SELECT id FROM terms WHERE term IN (?,?))"], [*found], alone=count <= _FEW)

    def aside(self, term: str) -> str:
        return f"({term}) IS TRUE"  # which no index knows

    def index_json(
        self, conn: Connection, table: str, id_: str, *, before: Mapping[str, bytes], after: Mapping[str, bytes],
        caller: str,
    ) -> None:  # fmt: skip
        old, new = (
            {term for column, json in some.items() for term in rows_of(f"{table}.{column}", json, caller)}
            for some in (before, after)
        )
        for at in chunks(sorted(old - new)):
            conn.execute(f"DELETE FROM terms WHERE id=? AND term IN {marks(at)}", (id_, *at))
        if new - old:
            insert(conn, "terms", ("term", "id"), [(term, id_) for term in sorted(new - old)])

    def insert_runs(self, conn: Connection, rows: list[Any]) -> None:
        super().insert_runs(conn, rows)
        terms = [
            (term, row[_ID]) for row in rows for term in sorted(rows_of("runs.metadata", row[_METADATA], row[_CALLER]))
        ]
        if terms:
            insert(conn, "terms", ("term", "id"), terms)

    def insert_run(self, conn: Connection, row: tuple[Any, ...], turn: str, args: tuple[Any, ...]) -> None:
        super().insert_run(conn, row, turn, args)
        metadata = {"metadata": row[_METADATA]}
        self.index_json(conn, "runs", row[_ID], before={}, after=metadata, caller=row[_CALLER])


SQLITE = _SQLite()


class SQLiteConnection(sqlite3.Connection):
    dialect: Dialect = SQLITE

    def lock(self, *names: Lock) -> None:
        """Who writes is alone: see `begin`."""


def connect(path: Path, *, read_only: bool = False) -> SQLiteConnection:
    """A connection with the settings that everything here counts on. One that only reads never makes a file."""
    conn = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw" if read_only else path,
        uri=read_only,
        timeout=_LOCK_PATIENCE,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
        factory=SQLiteConnection,
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


class OpenedFile:
    """The file that a store was opened with. Another one may be at its path later."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._id = self._look()

    def _look(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def trouble(self) -> str | None:
        found = self._look()
        if found == self._id:
            return None
        what = "is gone" if found is None else "was replaced by another one"
        return (
            f"the store file {self._path} {what} while this process used it, so nothing is written any more; "
            "put the file back, or start the process again"
        )

    def check(self) -> None:
        """Raises Unavailable where what is written would be lost."""
        if (trouble := self.trouble()) is not None:
            raise Unavailable(trouble)


class SQLiteWriter(Writer):
    def __init__(
        self, file: OpenedFile, path: Path, loop: asyncio.AbstractEventLoop, on_foreign: Callable[[], None]
    ) -> None:
        super().__init__(loop)
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
            self._file.check()
            self._write(conn, sealed)
            answered(conn, calls, results)
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

    def _hopeless(self, error: Exception) -> bool:
        if isinstance(error, Unavailable):
            return self._file.trouble() is not None
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
