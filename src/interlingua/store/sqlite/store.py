"""The default store: one SQLite file, shared by as many processes of one machine as like.

WAL and synchronous=FULL: what was acknowledged survives `kill -9` and power loss. Reads run on their own
connections and never wait for the writer. Who is alive is known by the locks that living processes hold on files.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ...model import json_values
from ...model.documents import Document
from ...model.errors import Conflict, StoreError
from ...model.run import Thread
from .. import schema
from ..open import CannotOpen
from ..rows import WorkerRow, receiver_of
from ..sql import admission as transactions
from ..sql.database import Connection, Dialect
from ..sql.json_terms import rows_of
from ..sql.runs import SQLStore
from ..sql.threads import small_thread
from .worker_locks import Locks
from .writer import SQLITE, OpenedFile, SQLiteConnection, SQLiteWriter, begin, connect

T = TypeVar("T")

_APPLICATION = 0x494C4753  # "ILGS": how SQLite's application_id marks our files
_SMALL = 64 * 1024  # bytes
_GLANCE = (
    f"SELECT {', '.join(Document.__struct_fields__[:-1])}, CASE WHEN length(body)<={_SMALL} THEN body END "
    "FROM documents WHERE space=? AND id=?"
)


class SQLiteStore(SQLStore):
    dialect: Dialect = SQLITE
    _writer: SQLiteWriter

    def __init__(self, path: Path | str) -> None:
        super().__init__()
        self.path = Path(path)
        self.shown = str(path)
        self._locks = Locks(_locks_of(self.path))
        self._local = threading.local()
        self._connections: list[SQLiteConnection] = []
        self._at_once: SQLiteConnection | None = None  # for the event loop itself

    # -- life ---------------------------------------------------------------------------------------------

    async def open(self) -> None:
        self._start_threads()
        try:
            if not self.path.parent.is_dir():
                raise CannotOpen(self.path, f"there is no folder {self.path.parent}; make it first")
            if self.path.is_dir():
                raise CannotOpen(self.path, "it is a folder; name a file in it")
            await self._loop.run_in_executor(self._readers, migrate, self.path)
        except BaseException as error:
            await self._stop_threads()
            if isinstance(error, sqlite3.Error | OSError):
                raise CannotOpen(self.path, error) from error
            raise
        self._file = OpenedFile(self.path)
        self._writer = SQLiteWriter(self._file, self.path, self._loop, lambda: self.on_foreign_change())
        self._at_once = connect(self.path, read_only=True)
        self._at_once.execute("PRAGMA busy_timeout=0")
        self._connections.append(self._at_once)

    async def close(self) -> None:
        await self._writer.close()
        for worker in list(self._locks._held):
            self._locks.release(worker)
        await self._stop_threads()
        for conn in self._connections:
            conn.close()
        self._connections.clear()
        self._at_once = None

    def trouble(self) -> str | None:
        return self._file.trouble()

    def _with_connection(self, fn: Callable[[Connection], T]) -> T:
        conn = getattr(self._local, "conn", None)
        if conn is None:
            conn = connect(self.path, read_only=True)
            self._connections.append(conn)
            self._file.check()
            self._local.conn = conn
        return fn(conn)

    def glance(self, space: str, id_: str) -> tuple[Document | None, bool]:
        # A look at one page of an index, and writers hold up no readers: going to a thread and back takes longer. What
        # is large is better read in a thread.
        if self._at_once is None:
            return None, False
        try:
            row = self._at_once.execute(_GLANCE, (space, id_)).fetchone()
        except (sqlite3.Error, UnicodeEncodeError):
            return None, False
        if row is None:
            return None, True
        return (None, False) if row[-1] is None else (Document(*row), True)

    async def thread(self, thread: str) -> Thread | None:
        return self._look(lambda conn: small_thread(conn, thread)) or await super().thread(thread)

    async def _point(self, fn: Callable[[Connection], T | None]) -> T | None:
        if self._at_once is not None:
            with contextlib.suppress(sqlite3.Error, UnicodeEncodeError):  # who reads in a thread is told why
                return fn(self._at_once)
        return await super()._point(fn)

    def _look(self, fn: Callable[[Connection], T | None]) -> T | None:
        """One small row, read on the event loop; None also where it would have to be waited for."""
        if self._at_once is None:
            return None
        try:
            return fn(self._at_once)
        except (sqlite3.Error, UnicodeEncodeError):
            return None

    async def damaged_pages(self, *, thorough: bool) -> list[str]:
        """What SQLite finds wrong with the file itself."""
        pragma = "PRAGMA integrity_check(20)" if thorough else "PRAGMA quick_check(20)"
        try:
            rows = await self._search(lambda conn: conn.execute(pragma).fetchall())
        except StoreError as error:  # some damage ends the search for it
            return [str(error)]
        return [row[0] for row in rows if row[0] != "ok"]

    # -- workers ------------------------------------------------------------------------------------------

    async def enter(self, worker: WorkerRow) -> None:
        self._locks.hold(worker.id)
        await self._write(
            lambda conn: conn.execute(
                "INSERT OR REPLACE INTO workers (id, host, pid, started_at, queues) VALUES (?,?,?,?,?)",
                (worker.id, worker.host, worker.pid, worker.started_at, json_values.encode(worker.queues)),
            )
        )

    async def leave(self, worker: str) -> None:
        await self._write(lambda conn: transactions.hand_back(conn, worker, crashed=False))
        self._locks.release(worker)

    async def bury(self) -> list[str]:
        """Hand back the runs of workers that died. Returns those workers."""
        rows = await self._read(
            lambda conn: conn.execute(
                "SELECT id FROM workers UNION SELECT DISTINCT worker FROM runs WHERE worker IS NOT NULL"
            ).fetchall()
        )
        dead = [row[0] for row in rows if self._locks.dead(row[0])]
        if not dead:
            return []

        def hand_back(conn: Connection) -> None:
            for worker in dead:
                transactions.hand_back(conn, worker, crashed=True)

        await self._write(hand_back)
        for worker in dead:
            self._locks.sweep(worker)
        return dead


def migrate(path: Path, *, dry: bool = False, known: list[schema.Step] | None = None) -> schema.Plan:
    """Bring the file to the newest schema, or only tell what that would be. Safe to call from many processes at
    once."""
    known = schema.steps("sqlite") if known is None else known
    if dry and not path.exists():
        return schema.plan(str(path), 0, known, list)
    _refuse_foreign(path)
    conn = connect(path)
    conn.create_function("receiver_of", 1, receiver_of, deterministic=True)
    conn.create_function("terms_of", 3, _terms_of, deterministic=True)
    try:
        if not dry:
            path.chmod(0o600)
        begin(conn)
        try:
            done = _version(path, conn)
            plan = schema.plan(str(path), done, known, lambda: _alive(path, conn))
            if not dry:
                schema.refuse_beside_others(str(path), plan)
                for step in plan.ahead:
                    for statement in step.sql.split(";\n"):
                        if statement.strip():
                            conn.execute(statement)
                conn.execute(f"PRAGMA user_version={len(known)}")
                conn.execute(f"PRAGMA application_id={_APPLICATION}")
            conn.execute("COMMIT")
        except BaseException:
            conn.execute("ROLLBACK")
            raise
    finally:
        conn.close()
    return plan


def _terms_of(column: str, json: bytes, caller: str) -> str:
    """Terms for a table of them that is new to a store: a list, as JSON."""
    return json_values.encode(sorted(rows_of(column, json, caller))).decode()


def _refuse_foreign(path: Path) -> None:
    """Raise where the file is not a store, before anything of it is changed: a connection of ours sets its journal."""
    if not path.exists() or not path.stat().st_size:
        return
    conn = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30, factory=SQLiteConnection)
    try:
        conn.execute("BEGIN")  # one view of the file: another process may be creating the tables now
        _version(path, conn)
    finally:
        conn.close()


def _version(path: Path, conn: Connection) -> int:
    """The schema version of the file; 0 for a new one. Raises where the file is not a store of this program."""
    version: int = conn.execute("PRAGMA user_version").fetchone()[0]
    if conn.execute("PRAGMA application_id").fetchone()[0] == _APPLICATION:
        return version
    tables = {name for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    if {"runs", "events", "checkpoints"} <= tables:
        raise schema.too_old(str(path), "another file")
    if tables or version:
        raise Conflict(f"{path} is a SQLite file of another program; name another file for the store")
    return 0


def _alive(path: Path, conn: Connection) -> list[WorkerRow]:
    locks = Locks(_locks_of(path))
    rows = conn.execute("SELECT id, host, pid, started_at, queues FROM workers").fetchall()
    return [
        WorkerRow(row[0], row[1], row[2], row[3], json_values.decode(row[4])) for row in rows if not locks.dead(row[0])
    ]


def _locks_of(path: Path) -> Path:
    return Path(f"{path}.workers")
