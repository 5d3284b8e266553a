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

from ..open import CannotOpen
from ..sql.database import Database
from ..sql.dialect import Connection
from .connection import SQLITE, SQLiteConnection, connect
from .migration import migrate
from .writer import OpenedFile, SQLiteWriter

T = TypeVar("T")


class SQLiteDatabase(Database):
    writer: SQLiteWriter

    def __init__(self, path: Path) -> None:
        super().__init__(SQLITE)
        self.path = path
        self._local = threading.local()
        self._connections: list[SQLiteConnection] = []
        self._at_once: SQLiteConnection | None = None  # for the event loop itself

    async def open(self, on_change: Callable[[], None]) -> None:
        self.start_threads()
        try:
            if not self.path.parent.is_dir():
                raise CannotOpen(self.path, f"there is no folder {self.path.parent}; make it first")
            if self.path.is_dir():
                raise CannotOpen(self.path, "it is a folder; name a file in it")
            await self.loop.run_in_executor(self.readers, migrate, self.path)
        except BaseException as error:
            await self.stop_threads()
            if isinstance(error, sqlite3.Error | OSError):
                raise CannotOpen(self.path, error) from error
            raise
        self._file = OpenedFile(self.path)
        self.writer = SQLiteWriter(self._file, self.path, self.loop, on_change)
        self._at_once = connect(self.path, read_only=True)
        self._at_once.execute("PRAGMA busy_timeout=0")
        self._connections.append(self._at_once)

    async def stop_writing(self) -> None:
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
            conn = connect(self.path, read_only=True)
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
