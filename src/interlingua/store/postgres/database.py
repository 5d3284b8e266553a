"""A PostgreSQL schema as the database of a store: connections, and new ones where the server was away.

Without a bus, changes that others write are found by looking.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar
from uuid import uuid4

import psycopg

from ...model.errors import StoreError
from ...runtime.clock import Clock, sleep
from ..sql.database import Database, NoWriter
from ..sql.dialect import Connection
from .connection import POSTGRES, Place, PostgresConnection, connect, is_away, lost
from .migration import check_readable, migrate
from .writer import PostgresWriter

T = TypeVar("T")
log = logging.getLogger("interlingua.store")

_READ_PATIENCE = 10.0  # seconds that a read waits for a server that is away
_PAUSE = 0.1
_START_PAUSE = 0.5  # seconds between looks for a server that is away when this process starts


class PostgresDatabase(Database):
    writer: PostgresWriter | NoWriter

    def __init__(self, where: Place, clock: Clock) -> None:
        super().__init__(POSTGRES, clock)
        self.where = where
        self._local = threading.local()
        self._connections: list[PostgresConnection] = []

    async def open(self, on_change: Callable[[], None], waits_for_server: bool, *, read_only: bool = False) -> None:
        self._on_change = on_change
        self.start_threads()
        try:
            prepare = check_readable if read_only else migrate
            await self._until_server_is_there(functools.partial(prepare, self.where), waits_for_server)
            self.writer = NoWriter() if read_only else PostgresWriter(self.where, str(uuid4()), self.loop, self.clock)
            if isinstance(self.writer, PostgresWriter):
                await self.loop.run_in_executor(self.readers, self.writer.start)
        except BaseException as error:
            await self.stop_threads()
            if isinstance(error, psycopg.Error):
                raise StoreError("the store cannot be opened", why=error) from error
            raise
        self._look = self.clock.call_at(self.clock.monotonic() + self.where.poll, self._looked)

    async def _until_server_is_there(self, work: Callable[[], object], waits_for_server: bool) -> None:
        waits = False
        while True:
            try:
                await self.loop.run_in_executor(self.readers, work)
            except psycopg.OperationalError as error:
                if not waits_for_server or not is_away(error):
                    raise
                if not waits:
                    log.warning("the store cannot be reached; waiting for it: %s", " ".join(str(error).split()))
                    waits = True
                await sleep(self.clock, _START_PAUSE)
            else:
                if waits:
                    log.warning("the store is there")
                return

    async def stop_writing(self) -> None:
        self._look.cancel()
        await self.writer.close()

    async def stop_reading(self) -> None:
        await self.stop_threads()
        for conn in self._connections:
            conn.raw.close()
        self._connections.clear()

    def _looked(self) -> None:
        """Reports a possible change: no message says when others have written."""
        self._look = self.clock.call_at(self.clock.monotonic() + self.where.poll, self._looked)
        self._on_change()

    def begin_searches(self) -> None:
        self._local.searches = True

    def with_connection(self, fn: Callable[[Connection], T]) -> T:
        deadline = None
        while True:
            conn: PostgresConnection | None = getattr(self._local, "conn", None)
            try:
                if conn is None:
                    conn = connect(self.where, writes=False, searches=getattr(self._local, "searches", False))
                    self._local.conn = conn
                    self._connections.append(conn)
                return fn(conn)
            except psycopg.OperationalError as error:
                if not lost(conn, error):
                    raise
                if conn is not None:  # it had one, and that broke: at once on a new one
                    self._local.conn = None
                    self._connections.remove(conn)
                    conn.raw.close()
                    if deadline is None:
                        deadline = self.clock.monotonic() + _READ_PATIENCE
                        continue
                if deadline is None:
                    deadline = self.clock.monotonic() + _READ_PATIENCE
                if self.clock.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE)
