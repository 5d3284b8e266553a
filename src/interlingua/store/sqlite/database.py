"""A SQLite file as the database of a store: who reads it, and who writes it.

WAL and synchronous=FULL: what was acknowledged survives `kill -9` and power loss. Reads run on their own connections
and never wait for the writer.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ...runtime.clock import Clock, Timer
from ..address import CannotOpen, NoStore
from ..sql.database import Database, NoWriter
from ..sql.dialect import Connection
from .connection import SQLITE, SQLiteConnection, connect, connect_read_only
from .migration import check_readable, migrate
from .writer import OpenedFile, SQLiteWriter

T = TypeVar("T")

_WATCH_EVERY = 0.1  # seconds between looks for changes by other processes, in a store that is open for reading


class SQLiteDatabase(Database):
    writer: SQLiteWriter | NoWriter

    def __init__(self, path: Path, clock: Clock) -> None:
        super().__init__(SQLITE, clock)
        self.path = path
        self._local = threading.local()
        self._connections: list[SQLiteConnection] = []
        self._at_once: SQLiteConnection | None = None  # for the event loop itself
        self._read_only = False
        self._watch: Timer | None = None

    async def open(self, on_change: Callable[[], None], *, read_only: bool = False) -> None:
        self._read_only = read_only
        self.start_threads()
        try:
            await self.loop.run_in_executor(self.readers, self._check_or_migrate)
        except BaseException as error:
            await self.stop_threads()
            if isinstance(error, sqlite3.Error | OSError):
                raise CannotOpen(self.path, error) from error
            raise
        self._file = OpenedFile(self.path)
        self.writer = NoWriter() if read_only else SQLiteWriter(self._file, self.path, self.loop, self.clock, on_change)
        self._at_once = self._connect()
        self._at_once.execute("PRAGMA busy_timeout=0")
        self._connections.append(self._at_once)
        if read_only:
            self._watch_changes(on_change)

    def _check_or_migrate(self) -> None:
        if not self.path.parent.is_dir():
            raise CannotOpen(self.path, f"there is no folder {self.path.parent}; make it first")
        if self.path.is_dir():
            raise CannotOpen(self.path, "it is a folder; name a file in it")
        if not self._read_only:
            migrate(self.path)
            return
        if not self.path.exists():
            raise NoStore(self.path)
        with contextlib.closing(self._connect()) as conn:
            check_readable(self.path, conn)

    def _connect(self) -> SQLiteConnection:
        """Opens a connection that reads."""
        return connect_read_only(self.path) if self._read_only else connect(self.path, read_only=True)

    def _watch_changes(self, on_change: Callable[[], None], seen: int | None = None) -> None:
        """Looks for changes by other processes again and again: there is no writer that would notice them."""
        version = self.look(lambda conn: int(conn.execute("PRAGMA data_version").fetchone()[0]))
        self._watch = self.clock.call_at(
            self.clock.monotonic() + _WATCH_EVERY, self._watch_changes, on_change, version or seen
        )
        if None not in (version, seen) and version != seen:
            on_change()

    async def stop_writing(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        await self.writer.close()

    async def stop_reading(self) -> None:
        await self.stop_threads()
        for conn in self._connections:
            conn.close()
        self._connections.clear()
        self._at_once = None

    def trouble(self) -> str | None:
        return self._file.trouble()

    def with_connection(self, fn: Callable[[Connection], T]) -> T:
        conn = getattr(self._local, "conn", None)
        if conn is None:
            conn = self._connect()
            self._connections.append(conn)
            self._file.check()
            self._local.conn = conn
        return fn(conn)

    async def read_row(self, fn: Callable[[Connection], T | None]) -> T | None:
        if self._at_once is not None:
            with contextlib.suppress(sqlite3.Error, UnicodeEncodeError):  # who reads in a thread is told why
                return fn(self._at_once)
        return await super().read_row(fn)

    def look(self, fn: Callable[[Connection], T]) -> T | None:
        if self._at_once is None:
            return None
        try:
            return fn(self._at_once)
        except (sqlite3.Error, UnicodeEncodeError):
            return None
